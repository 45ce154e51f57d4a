//! A network card's receive queues: number, length, and the hash that spreads frames over them.

use std::io;
use std::os::fd::AsFd;

use super::{Interface, system};
use crate::error::OpenError;
use crate::sys;

/// Bit of the hash function in `ethtool_rxfh` (`ETH_RSS_HASH_TOP`).
const TOEPLITZ: u8 = 1;
/// Words of `ethtool_rxfh` before its table.
const HEAD: usize = 6;

/// The receive queues of a network card. What the driver does not report is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Receive queues: current number and maximum.
    pub count: Option<(u32, u32)>,
    /// Frames per queue: current number and maximum.
    pub length: Option<(u32, u32)>,
    /// How frames are spread over the queues.
    pub hash: Option<ReceiveHash>,
}

/// The receive-side scaling of a network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveHash {
    /// Whether the function is Toeplitz.
    pub is_toeplitz: bool,
    /// Whether both directions are mapped to the same input (`input_xfrm`).
    pub is_input_symmetric: bool,
    /// The key; empty if the driver does not report it.
    pub key: Vec<u8>,
    /// Queue by the low bits of the hash.
    pub table: Vec<u32>,
}

impl Queues {
    /// Queries an interface; needs no capability.
    ///
    /// # Errors
    /// There is no such interface, or it cannot be queried.
    pub fn query(interface: &str) -> Result<Self, OpenError> {
        let asked = Interface::open(interface)?;
        let socket = asked.query.as_fd();
        let ask = || -> io::Result<Self> {
            Ok(Self {
                count: told(sys::channels(socket, interface))?.map(|words| counts(&words)),
                length: told(sys::ring_sizes(socket, interface))?.map(|words| (words[5], words[1])),
                hash: told(sys::receive_hash(socket, interface))?
                    .and_then(|words| ReceiveHash::read(&words)),
            })
        };
        ask().map_err(system(interface, "its queues cannot be queried"))
    }
}

/// Receive-only plus combined queues of `ethtool_channels`.
fn counts(words: &[u32; 9]) -> (u32, u32) {
    (words[5] + words[8], words[1] + words[4])
}

/// `None` if the driver does not know the request.
fn told<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl ReceiveHash {
    /// From the words of `ethtool_rxfh`; `None` if there are too few.
    pub fn read(words: &[u32]) -> Option<Self> {
        let head = words.get(..HEAD)?;
        let (table, key_bytes) = (head[2] as usize, head[3] as usize);
        let [function, input, _, _] = head[4].to_ne_bytes();
        let key = words.get(HEAD + table..)?.iter().flat_map(|word| word.to_ne_bytes());
        Some(Self {
            is_toeplitz: function == 0 || function & TOEPLITZ != 0,
            is_input_symmetric: input != 0,
            key: key.take(key_bytes).collect(),
            table: words.get(HEAD..HEAD + table)?.to_vec(),
        })
    }

    /// Whether both directions of a flow get the same hash. With Toeplitz this is so if the key
    /// repeats every 16 bits: then swapping addresses, or ports, changes nothing.
    pub fn is_symmetric(&self) -> bool {
        let key = &self.key;
        let repeats = !key.is_empty() && key.iter().zip(key.iter().skip(2)).all(|(a, b)| a == b);
        self.is_input_symmetric || (self.is_toeplitz && repeats)
    }

    /// The command that makes the hash symmetric; `None` if the driver reports no key.
    pub fn remedy(&self, interface: &str) -> Option<String> {
        let pattern = ["6d", "5a"].into_iter().cycle().take(self.key.len());
        let key = pattern.collect::<Vec<_>>().join(":");
        let function = if self.is_toeplitz { "" } else { " hfunc toeplitz" };
        (!key.is_empty()).then(|| format!("ethtool -X {interface} hkey {key}{function}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A card with a table of four and a key of eight bytes.
    fn reply(function: u8, input: u8, key: [u8; 8]) -> Vec<u32> {
        let [a, b] =
            [0, 4].map(|at| u32::from_ne_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]));
        let how = u32::from_ne_bytes([function, input, 0, 0]);
        vec![0x46, 0, 4, 8, how, 0, 0, 1, 2, 3, a, b]
    }

    #[test]
    fn a_key_that_repeats_is_symmetric_and_any_other_is_not() {
        let random =
            ReceiveHash::read(&reply(1, 0, [0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2]))
                .unwrap();
        assert!(!random.is_symmetric());
        assert_eq!(random.table, [0, 1, 2, 3]);
        let line = random.remedy("eth0").unwrap();
        assert_eq!(line, "ethtool -X eth0 hkey 6d:5a:6d:5a:6d:5a:6d:5a");
        let repeating = [0x6d, 0x5a].repeat(4).try_into().unwrap();
        assert!(ReceiveHash::read(&reply(1, 0, repeating)).unwrap().is_symmetric());
    }

    #[test]
    fn other_functions_and_symmetric_inputs() {
        let repeating = [1, 2].repeat(4).try_into().unwrap();
        let crc = ReceiveHash::read(&reply(4, 0, repeating)).unwrap();
        assert!(!crc.is_symmetric());
        assert!(crc.remedy("eth0").unwrap().ends_with(" hfunc toeplitz"));
        assert!(ReceiveHash::read(&reply(1, 1, [1, 2, 3, 4, 5, 6, 7, 8])).unwrap().is_symmetric());
    }

    #[test]
    fn a_driver_that_tells_no_key_has_no_remedy_and_a_short_reply_is_none() {
        let without = ReceiveHash::read(&[0x46, 0, 1, 0, 1, 0, 0]).unwrap();
        assert!(!without.is_symmetric() && without.remedy("eth0").is_none());
        assert_eq!(ReceiveHash::read(&[0x46, 0, 9, 0, 1, 0, 0]), None);
        assert_eq!(counts(&[0, 1, 9, 9, 8, 0, 9, 9, 4]), (4, 9));
    }
}
