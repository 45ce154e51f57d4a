//! Names of addresses that answers on the wire gave.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

/// Addresses that are kept; the one that was named the longest ago makes room for a new one.
const ADDRESSES_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(65_535);

/// The last name that an answer of DNS or mDNS gave to each address.
#[derive(Debug)]
pub struct Seen(LruCache<IpAddr, Arc<str>>);

impl Default for Seen {
    fn default() -> Seen {
        // Memory only as addresses come.
        let mut names = LruCache::unbounded();
        names.resize(ADDRESSES_MAX);
        Seen(names)
    }
}

impl Seen {
    pub fn name(&self, address: IpAddr) -> Option<Arc<str>> {
        self.0.peek(&address).cloned()
    }

    /// An answer gave this name to the addresses.
    pub fn add(&mut self, name: &Arc<str>, addresses: &[IpAddr]) {
        for address in addresses {
            self.0.put(*address, name.clone());
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_last_name_counts_and_memory_is_bounded() {
        let mut seen = Seen::default();
        let address = |number| IpAddr::from(Ipv4Addr::from_bits(number));
        for name in ["a.example", "b.example"] {
            seen.add(&name.into(), &[address(7)]);
        }
        assert_eq!(seen.name(address(7)).as_deref(), Some("b.example"));
        let most = ADDRESSES_MAX.get() as u32;
        for number in 0..most {
            seen.add(&"c.example".into(), &[address(100 + number)]);
        }
        assert_eq!((seen.len(), seen.name(address(7))), (most as usize, None));
    }
}
