//! An open port.

use crate::first::enough::Enough;
use crate::rx::Rx;
use crate::tx::Tx;

/// One port of an interface.
pub struct Opened {
    /// The receiving side.
    pub rx: Box<dyn Rx>,
    /// The sending side, if [`PortSettings::sends`](crate::PortSettings::sends).
    pub tx: Option<Box<dyn Tx>>,
    /// With [`PortSettings::first`](crate::PortSettings::first): tells the kernel which flows need
    /// no more packets. Any port's serves all ports of the interface.
    pub enough: Option<Enough>,
    /// How the interface is read, for the operator, where it varies; same for all its ports.
    pub how: Option<String>,
}
