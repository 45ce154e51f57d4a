//! Bucket hashes, and the symmetric Toeplitz hash of NICs in software.
//!
//! FENXI §4.1 finds buckets with `rss ^ src ^ dst`. With the usual symmetric key (0x6d5a repeated,
//! Woo and Park 2012) the Toeplitz hash is linear over 16-bit words that all use the same key bits,
//! so that value depends only on `src ^ dst` and `sport ^ dport`, and anybody can build collisions.
//! The default is therefore a keyed hash over the ordered tuple; the paper's hash stays as `fenxi`
//! for the reproduction.

use crate::key::{KIND_V6, Key};

/// How the bucket of a flow is found (`flow.hash`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashKind {
    /// Keyed hash over the ordered tuple; the seed is secret in a live run.
    Keyed {
        /// Seed of the key.
        seed: u64,
    },
    /// The paper's `rss ^ src ^ dst`.
    Fenxi,
}

/// A hash in use. 64 bits: the bucket is taken from the low ones, the tag from
/// the top byte.
#[derive(Clone, Debug)]
pub struct Hasher(Form);

#[derive(Clone, Debug)]
enum Form {
    Keyed([u64; 5]),
    Fenxi(Toeplitz),
}

impl Hasher {
    /// The hash of this kind, with its tables or its key.
    pub fn new(kind: HashKind) -> Hasher {
        Hasher(match kind {
            HashKind::Keyed { seed } => {
                let mut state = seed;
                Form::Keyed(std::array::from_fn(|_| split_mix(&mut state)))
            }
            HashKind::Fenxi => Form::Fenxi(Toeplitz::new()),
        })
    }

    /// Hash of a key; `rss` is the NIC's hash where it gave one.
    #[inline]
    pub fn hash(&self, key: &Key, rss: Option<u32>) -> u64 {
        match &self.0 {
            Form::Keyed(secret) => keyed(secret, key),
            Form::Fenxi(toeplitz) => {
                let rss = rss.unwrap_or_else(|| toeplitz.hash(key));
                let value = rss ^ fold_address(key.low) ^ fold_address(key.high);
                // The paper's tag is the first byte, its bucket the last three.
                u64::from(value >> 24) << 56 | u64::from(value & 0x00ff_ffff)
            }
        }
    }
}

/// Folded 64x64 multiplications over the tuple, each half masked by a secret
/// word (the construction of wyhash and foldhash).
#[inline]
fn keyed(secret: &[u64; 5], key: &Key) -> u64 {
    let rest = u64::from(key.ports) | u64::from(key.kind) << 32;
    let mut hash = fold(key.low[0] ^ secret[0], key.high[0] ^ secret[1]);
    if key.kind & KIND_V6 != 0 {
        hash ^= fold(key.low[1] ^ secret[2], key.high[1] ^ secret[3]);
    }
    fold(hash ^ secret[2], rest ^ secret[4])
}

#[inline]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// An address in 32 bits, the words of IPv6 combined by XOR.
#[inline]
fn fold_address(words: [u64; 2]) -> u32 {
    let word = words[0] ^ words[1];
    word as u32 ^ (word >> 32) as u32
}

/// SplitMix64 (Steele, Lea, Flood 2014): spreads a seed over the secret words.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Toeplitz hash with the symmetric key 0x6d5a 0x6d5a ….
///
/// The key repeats after 16 bits, so every 16-bit word of the input is hashed
/// with the same key bits, and because the hash is linear the words may be
/// combined by XOR first: two table look-ups for a packet of any family.
#[derive(Clone, Debug)]
pub struct Toeplitz {
    high: Box<[u32; 256]>,
    low: Box<[u32; 256]>,
}

impl Default for Toeplitz {
    fn default() -> Toeplitz {
        Toeplitz::new()
    }
}

impl Toeplitz {
    const KEY: u64 = 0x6d5a_6d5a_6d5a_6d5a;

    /// Builds the tables, 2 KiB.
    pub fn new() -> Toeplitz {
        let table = |shift: u32| {
            Box::new(std::array::from_fn(|byte| {
                (0..8)
                    .filter(|bit| byte >> (7 - bit) & 1 == 1)
                    .fold(0, |hash, bit| hash ^ Self::window(shift + bit))
            }))
        };
        Toeplitz { high: table(0), low: table(8) }
    }

    /// The 32 key bits from bit `at` on.
    const fn window(at: u32) -> u32 {
        (Self::KEY << at >> 32) as u32
    }

    /// The RSS hash of both directions of a flow.
    #[inline]
    pub fn hash(&self, key: &Key) -> u32 {
        let words = key.low[0] ^ key.low[1] ^ key.high[0] ^ key.high[1] ^ u64::from(key.ports);
        let half = words ^ words >> 32;
        let word = (half ^ half >> 16) as u16;
        self.high[usize::from(word >> 8)] ^ self.low[usize::from(word & 255)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{TCP, UDP};

    /// Toeplitz bit by bit, as the RSS specification words it, over the tuple
    /// in the order source, destination, source port, destination port.
    fn toeplitz_by_the_book(input: &[u8]) -> u32 {
        let key: Vec<u8> = [0x6d, 0x5a].into_iter().cycle().take(64).collect();
        let key_bit = |at: usize| u32::from(key[at / 8] >> (7 - at % 8) & 1);
        let mut hash = 0;
        for at in 0..input.len() * 8 {
            if input[at / 8] >> (7 - at % 8) & 1 == 1 {
                hash ^= (0..32).fold(0, |window, bit| window << 1 | key_bit(at + bit));
            }
        }
        hash
    }

    #[test]
    fn toeplitz_by_table_equals_toeplitz_by_the_book() {
        let toeplitz = Toeplitz::new();
        let mut state = 1;
        for _ in 0..100 {
            let (source, destination) =
                (split_mix(&mut state) as u32, split_mix(&mut state) as u32);
            let ports = split_mix(&mut state) as u32;
            let (sport, dport) = ((ports >> 16) as u16, ports as u16);
            let mut input = [source.to_be_bytes(), destination.to_be_bytes()].concat();
            input.extend(sport.to_be_bytes());
            input.extend(dport.to_be_bytes());
            let ends = (([u64::from(source), 0], sport), ([u64::from(destination), 0], dport));
            let (key, _) = Key::new(false, TCP, ends.0, ends.1);
            assert_eq!(toeplitz.hash(&key), toeplitz_by_the_book(&input));

            let wide: [[u64; 2]; 2] =
                std::array::from_fn(|_| [split_mix(&mut state), split_mix(&mut state)]);
            let mut input: Vec<u8> =
                wide.as_flattened().iter().flat_map(|w| w.to_be_bytes()).collect();
            input.extend(sport.to_be_bytes());
            input.extend(dport.to_be_bytes());
            let (key, _) = Key::new(true, UDP, (wide[0], sport), (wide[1], dport));
            assert_eq!(toeplitz.hash(&key), toeplitz_by_the_book(&input));
        }
    }

    #[test]
    fn the_papers_hash_collides_at_will_and_the_keyed_one_does_not() {
        let fenxi = Hasher::new(HashKind::Fenxi);
        let keyed = Hasher::new(HashKind::Keyed { seed: 3 });
        let keys: Vec<Key> = (0..1000u64)
            .map(|i| Key::new(false, TCP, ([i ^ 0xffff, 0], 1000), ([i, 0], 443)).0)
            .collect();
        let distinct = |hasher: &Hasher| {
            let hashes: std::collections::HashSet<u64> =
                keys.iter().map(|key| hasher.hash(key, None)).collect();
            hashes.len()
        };
        assert_eq!(distinct(&fenxi), 1);
        assert_eq!(distinct(&keyed), 1000);
    }

    #[test]
    fn the_seed_decides_the_keyed_hash() {
        let (key, _) = Key::new(true, UDP, ([1, 2], 3), ([4, 5], 6));
        let hash = |seed| Hasher::new(HashKind::Keyed { seed }).hash(&key, None);
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }
}
