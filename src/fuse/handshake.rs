//! The first exchange of a connection, INIT: what the kernel offers, what we want of it. The library fuser does it (it knows the
//! versions of the protocol); afterwards the device is ours alone.

use super::device::REQUEST_BYTES_MAX;
use super::request::Dialect;
use super::session::CacheMode;
use fuser::{Config, InitFlags, KernelConfig, Session, SessionACL};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Asynchronous requests (writeback, readahead, asynchronous direct I/O) in flight.
const BACKGROUND_MAX: u16 = 512;

/// What came out of it.
#[derive(Debug)]
pub struct Agreed {
    /// The device, on which requests come now.
    pub device: OwnedFd,
    /// How they look.
    pub dialect: Dialect,
    /// The kernel holds them back until there are rings for them.
    pub over_rings: bool,
}

/// What of it is ours to choose.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Who caches writes first.
    pub cache: CacheMode,
    /// Requests shall come over io_uring, if the kernel offers that.
    pub over_rings: bool,
    /// The kernel shall ask for access control lists and obey them.
    pub acl: bool,
}

/// The connection flags that we want; what the kernel does not offer is left out.
pub fn wanted_flags(wishes: &Wishes) -> InitFlags {
    let wanted = InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_EXPLICIT_INVAL_DATA
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_NO_OPEN_SUPPORT
        | InitFlags::FUSE_NO_OPENDIR_SUPPORT
        | InitFlags::FUSE_EXPORT_SUPPORT
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
        | InitFlags::FUSE_SETXATTR_EXT
        // An abort from outside then ends the session with ECONNABORTED: only then is the dead mount still ours to remove.
        | InitFlags::FUSE_ABORT_ERROR;
    let wanted = if wishes.acl { wanted | InitFlags::FUSE_POSIX_ACL } else { wanted };
    match wishes.cache {
        CacheMode::Writeback => wanted | InitFlags::FUSE_WRITEBACK_CACHE,
        CacheMode::None => wanted,
    }
}

/// Answers INIT, which waits on `device`.
pub fn introduce(device: OwnedFd, wishes: Wishes) -> io::Result<Agreed> {
    let flags = Arc::new(Mutex::new(InitFlags::empty()));
    let mut config = Config::default();
    // Who may enter is the kernel's business (allow_other), not the library's.
    config.acl = SessionACL::All;
    let session = Session::from_fd(Introduction { wishes, flags: flags.clone() }, device, SessionACL::All, config)?;
    let device = session.as_fd().try_clone_to_owned()?;
    let flags = *flags.lock();
    let dialect = Dialect { setxattr_ext: flags.contains(InitFlags::FUSE_SETXATTR_EXT) };
    Ok(Agreed { device, dialect, over_rings: flags.contains(InitFlags::FUSE_OVER_IO_URING) })
}

/// As much of a file system as the library must see.
struct Introduction {
    wishes: Wishes,
    flags: Arc<Mutex<InitFlags>>,
}

impl fuser::Filesystem for Introduction {
    fn init(&mut self, _request: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |what: &str| io::Error::other(format!("the FUSE library refused {what}"));
        let wanted = wanted_flags(&self.wishes);
        let missing = wanted.difference(config.capabilities());
        if !missing.is_empty() {
            tracing::info!("this kernel's FUSE lacks {missing:?}: slower, nothing else");
        }
        let rings = if self.wishes.over_rings { InitFlags::FUSE_OVER_IO_URING } else { InitFlags::empty() };
        let agreed = (wanted | rings).intersection(config.capabilities());
        config.add_capabilities(agreed).map_err(|_| refused("the connection flags"))?;
        config.set_max_write(REQUEST_BYTES_MAX as u32).map_err(|_| refused("max_write"))?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| refused("max_background"))?;
        config.set_congestion_threshold(BACKGROUND_MAX).map_err(|_| refused("congestion_threshold"))?;
        *self.flags.lock() = agreed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_would_hurt_are_never_wanted() {
        let never = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            | InitFlags::FUSE_SECURITY_CTX
            | InitFlags::FUSE_CREATE_SUPP_GROUP
            | InitFlags::FUSE_PASSTHROUGH
            | InitFlags::FUSE_HANDLE_KILLPRIV
            | InitFlags::FUSE_ALLOW_IDMAP
            | InitFlags::FUSE_OVER_IO_URING;
        for cache in [CacheMode::Writeback, CacheMode::None] {
            for acl in [false, true] {
                let wanted = wanted_flags(&Wishes { cache, acl, over_rings: true });
                assert!(wanted.intersection(never).is_empty());
                assert_eq!(wanted.contains(InitFlags::FUSE_WRITEBACK_CACHE), cache == CacheMode::Writeback);
                assert_eq!(wanted.contains(InitFlags::FUSE_POSIX_ACL), acl);
            }
        }
    }
}
