//! Who keeps receive rings beyond the end of the process.

use std::fmt;
use std::os::fd::BorrowedFd;

/// Who keeps the sockets of rings beyond the end of the process. Neither call waits for long.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// Keeps the socket of a ring. The name says all about it that the next process has to know: at most 255 printable
    /// characters of ASCII, none a colon.
    fn keep(&self, name: &str, socket: BorrowedFd<'_>);
    /// Gives up what is kept by this name.
    fn forget(&self, name: &str);
}
