//! An open port.

use crate::first::enough::Enough;
use crate::rx::Rx;
use crate::tx::Tx;

/// One port of an interface.
pub struct Opened {
    /// Its receiving side.
    pub rx: Box<dyn Rx>,
    /// Its sending side, if [`PortSettings::sends`](crate::PortSettings::sends) asks for one.
    pub tx: Option<Box<dyn Tx>>,
    /// With [`PortSettings::first`](crate::PortSettings::first): tells the kernel which flows need no more packets. That of one port serves all ports of
    /// its interface.
    pub enough: Option<Enough>,
    /// How the interface is read, for people, where that is not always the same: the same line for all ports of one.
    pub how: Option<String>,
}
