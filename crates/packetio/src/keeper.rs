//! Keeps receive rings beyond the end of the process.

use std::fmt;
use std::os::fd::BorrowedFd;

/// Keeps ring sockets beyond the end of the process. Calls return quickly.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// Keeps a ring's socket. The name has all that the next process must know: at most 255
    /// printable ASCII characters, no colon.
    fn keep(&self, name: &str, socket: BorrowedFd<'_>);
    /// Drops the socket kept under this name.
    fn forget(&self, name: &str);
}
