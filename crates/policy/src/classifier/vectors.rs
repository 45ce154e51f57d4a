//! The two hot spots of look-ups as vector instructions, chosen at run time by the processor's
//! features.
#![allow(unsafe_code, reason = "instructions that not every processor has")]

use super::learned::block::{Boxes, LANES};
use crate::Key;

/// A set of vector instructions.
pub trait Vectors {
    /// Σ w2·max(0, w1·x + b1) + b2 over eight neurons, summed as a tree: halves, quarters, eighths.
    fn weigh(w1: &[f32; LANES], b1: &[f32; LANES], w2: &[f32; LANES], b2: f32, x: f32) -> f32;

    /// Which of eight boxes of IPv4 contain the key, a bit per box.
    fn matches(boxes: &Boxes<u32>, key: &Key<u32>) -> u8;
}

/// Code compiled for each instruction set. `call` and all that it calls must be
/// `#[inline(always)]`.
pub(super) trait WithVectors {
    fn call<V: Vectors>(self);
}

/// Runs the code with the widest instructions of this processor.
#[inline]
pub(super) fn with_vectors(code: impl WithVectors) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("popcnt")
    {
        // SAFETY: the processor has these instructions.
        return unsafe { avx2::call(code) };
    }
    code.call::<Plain>();
}

/// Rounds `said` down and clamps it to 0..=`last`, which is below 2^24; 0 for NaN.
#[inline(always)]
pub(super) fn whole(said: f32, last: u32) -> u32 {
    debug_assert!(last < 1 << 24, "exact as f32");
    let within = said.max(0.0).min(last as f32);
    // SAFETY: a number from 0 to `last`, as `max` returns the 0 for NaN.
    unsafe { within.to_int_unchecked::<i32>() as u32 }
}

/// Plain code, for any processor.
pub(super) struct Plain;

impl Vectors for Plain {
    #[inline(always)]
    fn weigh(w1: &[f32; LANES], b1: &[f32; LANES], w2: &[f32; LANES], b2: f32, x: f32) -> f32 {
        let neuron = |neuron: usize| (w1[neuron] * x + b1[neuron]).max(0.0) * w2[neuron];
        let [a, b, c, d, e, f, g, h] = std::array::from_fn(neuron);
        (((a + e) + (c + g)) + ((b + f) + (d + h))) + b2
    }

    #[inline(always)]
    fn matches(boxes: &Boxes<u32>, key: &Key<u32>) -> u8 {
        boxes.matches(key)
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Boxes, Key, LANES, Vectors, WithVectors};

    /// AVX2. This type appears in [`call`] only, so its functions run only where the processor has
    /// the instructions.
    struct Avx2;

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn call(code: impl WithVectors) {
        code.call::<Avx2>();
    }

    impl Vectors for Avx2 {
        #[inline(always)]
        fn weigh(w1: &[f32; LANES], b1: &[f32; LANES], w2: &[f32; LANES], b2: f32, x: f32) -> f32 {
            // SAFETY: see `Avx2`.
            unsafe { weigh(w1, b1, w2, b2, x) }
        }

        #[inline(always)]
        fn matches(boxes: &Boxes<u32>, key: &Key<u32>) -> u8 {
            // SAFETY: see `Avx2`.
            unsafe { matches(boxes, key) }
        }
    }

    /// No fused multiply-add: results must be identical on every machine, as the proven bounds are.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn weigh(w1: &[f32; LANES], b1: &[f32; LANES], w2: &[f32; LANES], b2: f32, x: f32) -> f32 {
        // SAFETY: the arrays have eight elements.
        let [w1, b1, w2] = [w1, b1, w2].map(|it| unsafe { _mm256_loadu_ps(it.as_ptr()) });
        let inner = _mm256_add_ps(_mm256_mul_ps(w1, _mm256_set1_ps(x)), b1);
        let terms = _mm256_mul_ps(_mm256_max_ps(inner, _mm256_setzero_ps()), w2);
        let halves = _mm_add_ps(_mm256_castps256_ps128(terms), _mm256_extractf128_ps::<1>(terms));
        let quarters = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
        let sum = _mm_add_ss(quarters, _mm_movehdup_ps(quarters));
        _mm_cvtss_f32(sum) + b2
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn matches(boxes: &Boxes<u32>, key: &Key<u32>) -> u8 {
        let Boxes { source, destination, source_ports, destination_ports, rest } = boxes;
        // SAFETY: the arrays have eight elements.
        let [source, destination, source_ports, destination_ports, rest] =
            [source, destination, source_ports, destination_ports, rest]
                .map(|it| unsafe { _mm256_loadu_si256(it.as_ptr().cast()) });
        let byte = _mm256_set1_epi32(0xff);
        let zero = _mm256_setzero_si256();
        // Equal prefixes leave nothing after a shift by the open bits; a shift by 32 leaves nothing
        // at all.
        let off = |address: u32, prefix, open| {
            let difference = _mm256_xor_si256(_mm256_set1_epi32(address as i32), prefix);
            _mm256_srlv_epi32(difference, _mm256_and_si256(open, byte))
        };
        let addresses = _mm256_or_si256(
            off(key.source, source, rest),
            off(key.destination, destination, _mm256_srli_epi32::<8>(rest)),
        );
        // As 16-bit lanes: first port in the lower half, last in the upper. max(first, port) = port
        // means at least the first, min(last, port) = port at most the last.
        let outside = |ports, port: u16| {
            let port = _mm256_set1_epi16(port as i16);
            let inside = _mm256_blend_epi16::<0b1010_1010>(
                _mm256_max_epu16(ports, port),
                _mm256_min_epu16(ports, port),
            );
            _mm256_xor_si256(inside, port)
        };
        let ports = _mm256_or_si256(
            outside(source_ports, key.source_port),
            outside(destination_ports, key.destination_port),
        );
        // Protocol and interface in the upper half: 0 in the box matches any.
        let wanted = _mm256_srli_epi32::<16>(rest);
        let is = u32::from(key.protocol) | u32::from(key.in_port) << 8;
        let other = _mm256_xor_si256(wanted, _mm256_set1_epi32(is as i32));
        let other = _mm256_andnot_si256(_mm256_cmpeq_epi8(wanted, zero), other);
        let misses = _mm256_or_si256(_mm256_or_si256(addresses, ports), other);
        let lanes = _mm256_cmpeq_epi32(misses, zero);
        _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u8
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::classifier::learned::{Blocks, Filling};
    use crate::classifier::tests::{Random, random_filters, random_key};

    /// Both ways of everything, with the same arguments.
    struct Both(u64);

    impl WithVectors for Both {
        #[inline(always)]
        fn call<V: Vectors>(self) {
            let mut random = Random::new(self.0);
            let mut float = || (random.next() >> 40) as f32 / 1e5 - 80.0;
            let [w1, b1, w2] = std::array::from_fn(|_| std::array::from_fn(|_| float()));
            let (b2, x) = (float(), float());
            let (plain, vector) =
                (Plain::weigh(&w1, &b1, &w2, b2, x), V::weigh(&w1, &b1, &w2, b2, x));
            assert_eq!(plain.to_bits(), vector.to_bits(), "{plain} {vector}");
            let mut filters = random_filters::<u32>(self.0, LANES);
            filters.retain(Blocks::takes);
            let mut blocks = Filling::default();
            blocks.push(&filters);
            let blocks = Blocks::new(blocks, Filling::default());
            for at in 0..if filters.is_empty() { 0 } else { 20 } {
                let key = random_key(self.0 ^ at << 32, &filters);
                let boxes = blocks.boxes(0);
                assert_eq!(Plain::matches(boxes, &key), V::matches(boxes, &key));
            }
        }
    }

    #[test]
    fn vectors_compute_what_plain_code_does() {
        (0..20_000).for_each(|seed| with_vectors(Both(seed)));
    }
}
