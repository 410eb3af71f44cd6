//! The transport: the kernel's FUSE requests in, answers out. No file-system logic lives here.
//!
//! [`session`] mounts and runs; [`adapter`] decodes one request and calls one function of [`crate::fs`]; [`dispatch`] decides on
//! which thread a data operation may wait, [`stream`] in which order large reads are answered; [`translate`] converts attributes, times, flags and errors. No lock is held in this
//! layer except inside the worker queue.

pub mod adapter;
pub mod dispatch;
pub mod session;
pub mod stream;
pub mod translate;
