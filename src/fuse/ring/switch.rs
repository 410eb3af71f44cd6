//! The kernel's switch for FUSE over io_uring (`fuse.enable_uring`), which is off unless somebody turned it on. The kernel looks at it
//! when a file system is mounted and when INIT is answered, and not again for that connection. So root turns it on for
//! that moment only, and puts back what was there.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{self, Read, Seek, Write};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The switch is on as long as this lives.
#[derive(Debug)]
pub struct SwitchedOn {
    /// To be put back.
    before: Option<(File, Vec<u8>)>,
}

impl SwitchedOn {
    /// Turns it on; an error says why that cannot be.
    pub fn now() -> io::Result<SwitchedOn> {
        let mut switch = match File::options().read(true).write(true).open(SWITCH) {
            Ok(switch) => switch,
            Err(_) if is_on() => return Ok(SwitchedOn { before: None }),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{SWITCH}: {error}"))),
        };
        // Two mounts at once would put back each other's.
        flock(&switch, FlockOperation::LockExclusive)?;
        let mut before = Vec::new();
        switch.read_to_end(&mut before)?;
        if before.starts_with(b"Y") {
            return Ok(SwitchedOn { before: None });
        }
        switch.rewind()?;
        switch.write_all(b"Y")?;
        tracing::info!("FUSE over io_uring: {SWITCH} is on while this is mounted, then off again as before");
        Ok(SwitchedOn { before: Some((switch, before)) })
    }
}

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        if let Some((switch, before)) = &mut self.before
            && let Err(error) = switch.rewind().and_then(|()| switch.write_all(before))
        {
            tracing::warn!("{SWITCH} stays on: {error}");
        }
    }
}

fn is_on() -> bool {
    std::fs::read(SWITCH).is_ok_and(|value| value.starts_with(b"Y"))
}
