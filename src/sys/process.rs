//! The process itself: who it is, where it runs, what it may, and the children it forks.

use std::ffi::CString;

/// A user of the system, looked up while that was still possible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The name.
    pub name: CString,
    /// The user's number.
    pub uid: u32,
    /// The number of the user's primary group.
    pub gid: u32,
}
