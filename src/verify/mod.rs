//! (being written)
pub mod check;
pub mod issue;
