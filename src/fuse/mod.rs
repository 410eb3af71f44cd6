//! (being written)
pub mod adapter;
pub mod dispatch;
pub mod session;
pub mod translate;
