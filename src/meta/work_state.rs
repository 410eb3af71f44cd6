//! How it stands with work on the whole store that goes on over mounts: a scrub, or the emptying of a device. A byte in their records.

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum WorkState {
    /// There never was any.
    #[default]
    Never = 0,
    /// Under way, or broken off by the end of the process: it goes on with the next mount.
    Running = 1,
    /// Until someone resumes it.
    Paused = 2,
    /// It has done everything.
    Finished = 3,
    /// Someone ended it; what was done stays.
    Cancelled = 4,
}

impl WorkState {
    pub(super) fn from_byte(byte: u8) -> Option<WorkState> {
        use WorkState::*;
        [Never, Running, Paused, Finished, Cancelled].into_iter().find(|state| *state as u8 == byte)
    }

    /// The name in `sumfs scrub status` and `sumfs device status`.
    pub fn name(self) -> &'static str {
        match self {
            WorkState::Never => "never",
            WorkState::Running => "running",
            WorkState::Paused => "paused",
            WorkState::Finished => "finished",
            WorkState::Cancelled => "cancelled",
        }
    }

    /// Is there something that has not ended?
    pub fn is_open(self) -> bool {
        matches!(self, WorkState::Running | WorkState::Paused)
    }
}
