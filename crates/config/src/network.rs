//! Networks, as the configuration names them: `192.168.0.0/16`.

use std::net::IpAddr;
use std::str::FromStr;

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Its address; bits behind the first [`Network::bits`] mean nothing.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits addresses of the network share.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether an address belongs to the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                // All 32 bits are shifted out where none has to agree.
                let differ = network.to_bits() ^ address.to_bits();
                differ.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differ = network.to_bits() ^ address.to_bits();
                differ.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    /// Reads `ADDRESS/BITS`, or an address alone.
    fn from_str(text: &str) -> Result<Network, String> {
        let wrong =
            || format!("{text:?} is no network; write it as 192.168.0.0/16 or 2001:db8::/56");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(longest), str::parse).map_err(|_| wrong())?;
        if bits > longest {
            return Err(wrong());
        }
        Ok(Network { address, bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        let network: Network = network.parse().unwrap();
        network.contains(address.parse().unwrap())
    }

    #[test]
    fn addresses_belong_to_a_network_by_their_first_bits() {
        for (network, inside, outside) in [
            ("192.168.0.0/16", "192.168.255.1", "192.169.0.0"),
            ("10.0.0.7", "10.0.0.7", "10.0.0.6"),
            ("10.0.0.0/31", "10.0.0.1", "10.0.0.2"),
            ("0.0.0.0/0", "255.0.0.1", "::1"),
            ("2001:db8::/32", "2001:db8:1::", "2001:db9::"),
            ("::/0", "ff02::1", "1.2.3.4"),
        ] {
            assert!(contains(network, inside), "{network} {inside}");
            assert!(!contains(network, outside), "{network} {outside}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "lan", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "10.0.0/8", "10.0.0.0/"] {
            let refused = text.parse::<Network>().unwrap_err();
            assert!(refused.contains("192.168.0.0/16"), "{refused}");
        }
    }
}
