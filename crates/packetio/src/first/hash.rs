//! The hash that gives a flow its worker and its set, as in the program.

use super::layout::Key;
use crate::faults::SplitMix64;

/// Secret: knowing it allows sending colliding packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secrets([u64; Secrets::COUNT]);

impl Secrets {
    /// Two per word of a key, and one for the last round.
    const COUNT: usize = 11;

    /// Spreads a seed over the secrets.
    pub fn new(seed: u64) -> Secrets {
        let mut random = SplitMix64(seed);
        let mut secrets = std::array::from_fn(|_| random.next());
        // Multiplication by an odd number is invertible.
        secrets[Secrets::COUNT - 1] |= 1;
        Secrets(secrets)
    }

    /// As the program needs them.
    pub fn as_slice(&self) -> &[u64] {
        &self.0
    }

    /// A strongly universal sum ("multilinear-HM", Lemire and Kaser, 2014): two flows collide for
    /// few secrets only. It is nearly linear, so with some secrets regular tuples would collide in
    /// large groups; the last round prevents that.
    pub fn hash(&self, key: &Key) -> u64 {
        let term = |word: u64, i: usize| {
            let [low, high] = [self.0[2 * i], self.0[2 * i + 1]];
            let low = u64::from(word as u32).wrapping_add(low);
            low.wrapping_mul((word >> 32).wrapping_add(high))
        };
        let words = if key.is_v6 == 0 { 1 } else { 4 };
        let sum = (0..words)
            .fold(term(key.kind(), 0), |sum, i| sum.wrapping_add(term(key.word(i), i + 1)));
        fold(fold(sum).wrapping_mul(self.0[Secrets::COUNT - 1]))
    }
}

fn fold(hash: u64) -> u64 {
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::first::layout::WAYS;

    /// Sets of a table of 131,072 flows.
    const SETS: usize = 1 << 15;

    /// Flows of one client with hosts whose addresses and ports differ in these bits only.
    fn flows(
        count: u32,
        address: impl Fn(u32) -> IpAddr,
        port: impl Fn(u32) -> u16,
    ) -> impl Iterator<Item = Key> {
        let client = |is_v6| match is_v6 {
            true => "2001:db8::1".parse().unwrap(),
            false => IpAddr::V4([10, 77, 1, 2].into()),
        };
        (0..count).map(move |i| {
            let address = address(i);
            Key::new(17, [(client(address.is_ipv6()), 5000), (address, port(i))])
        })
    }

    /// How many of these flows find no place in their set.
    fn forgotten(secrets: Secrets, flows: impl Iterator<Item = Key>) -> usize {
        let mut sets = vec![0; SETS];
        flows.for_each(|key| sets[secrets.hash(&key) as usize % SETS] += 1);
        sets.iter().map(|flows: &usize| flows.saturating_sub(WAYS)).sum()
    }

    #[test]
    fn regular_tuples_are_spread_like_any_others_whatever_the_seed() {
        let v4 = |bits: u32| IpAddr::V4(bits.into());
        let v6 = |bits: u128| IpAddr::V6(((0x3000 << 112) | bits).into());
        for seed in 0..100 {
            let secrets = Secrets::new(seed);
            // Top bits of address and port, low bits, ports alone, addresses alone; words of IPv6.
            let regular: [Box<dyn Iterator<Item = Key>>; 6] = [
                Box::new(flows(
                    3968,
                    |i| v4((1 << 31) | ((i % 64) << 25)),
                    |i| ((i / 64) << 10) as u16 | 5,
                )),
                Box::new(flows(3968, |i| v4((11 << 24) | (i % 64)), |i| (i / 64) as u16)),
                Box::new(flows(3968, |_| v4(11 << 24), |i| i as u16)),
                Box::new(flows(3968, |i| v4((1 << 31) | (i << 19)), |_| 5)),
                Box::new(flows(
                    3968,
                    |i| v6((u128::from(i % 64) << 90) | (u128::from(i / 64) << 26)),
                    |_| 5,
                )),
                Box::new(flows(3968, |i| v6(u128::from(i)), |_| 5)),
            ];
            for (kind, flows) in regular.into_iter().enumerate() {
                // As many random ones lose one in a hundred tables.
                let forgotten = forgotten(secrets, flows);
                assert!(forgotten <= 4, "seed {seed}, kind {kind}: {forgotten}");
            }
        }
    }

    #[test]
    fn seeds_and_flows_have_hashes_of_their_own() {
        let key =
            |protocol| Key::new(protocol, [([10, 0, 0, 1].into(), 1), ([10, 0, 0, 2].into(), 2)]);
        let [one, other] = [1, 2].map(Secrets::new);
        assert_ne!(one.hash(&key(17)), other.hash(&key(17)));
        assert_ne!(one.hash(&key(17)), one.hash(&key(6)));
    }
}
