//! TCP and UDP: ports and flags.

use super::{TCP, UDP, be16, need};
use crate::verdict::Verdict;

/// The sender has no more data.
pub const TCP_FIN: u8 = 0x01;
/// The sender opens a connection.
pub const TCP_SYN: u8 = 0x02;
/// The sender aborts the connection.
pub const TCP_RST: u8 = 0x04;
/// The receiver should not wait for more data.
pub(crate) const TCP_PSH: u8 = 0x08;
/// The acknowledgement field counts.
pub const TCP_ACK: u8 = 0x10;

/// A layer-4 header, checked.
pub(super) struct Ports {
    pub source: u16,
    pub destination: u16,
    pub tcp_flags: u8,
    /// Bytes of the layer-4 header, with options.
    pub header: u32,
}

#[inline]
pub(super) fn parse(protocol: u8, payload: &[u8]) -> Result<Ports, Verdict> {
    let (tcp_flags, header) = match protocol {
        TCP => {
            need(payload, 0, 20, Verdict::L4Short)?;
            let header = usize::from(payload[12] >> 4) * 4;
            if header < 20 {
                return Err(Verdict::TcpDoff);
            }
            need(payload, 0, header, Verdict::L4Short)?;
            (payload[13], header as u32)
        }
        UDP => {
            need(payload, 0, 8, Verdict::L4Short)?;
            if be16(payload, 4) < 8 {
                return Err(Verdict::UdpLength);
            }
            (0, 8)
        }
        _ => return Err(Verdict::OtherL4),
    };
    Ok(Ports { source: be16(payload, 0), destination: be16(payload, 2), tcp_flags, header })
}
