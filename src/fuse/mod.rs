//! The transport: the kernel's FUSE requests in, answers out. No file-system logic lives here.
//!
//! [`session`] mounts and runs; [`handshake`] answers INIT; [`device`] takes requests from /dev/fuse,
//! [`ring`] over io_uring. [`request`] decodes one
//! ([`abi`] has the layouts), [`serve`] calls one function of [`crate::fs`] for it, [`encode`] and [`reply`] answer. [`dispatch`]
//! decides on which thread a data operation may wait, [`stream`] in which order large reads are answered; [`refusals`] tells
//! writers of a full store; [`translate`] converts flags and errors. No lock is held in this layer except inside the worker queue.

pub mod abi;
pub mod device;
pub mod dispatch;
pub mod encode;
pub mod handshake;
pub mod refusals;
pub mod reply;
pub mod request;
pub mod ring;
pub mod serve;
pub mod session;
pub mod stream;
pub mod translate;
