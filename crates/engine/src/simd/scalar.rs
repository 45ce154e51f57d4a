//! Arrays of four, for any processor. It says what the other instruction sets have to do.

use std::array::from_fn;

use super::Simd;

/// `TILES` are for tests: as the manual defines AMX, for machines without.
#[derive(Clone, Copy)]
pub(crate) struct Scalar<const TILES: bool>;

#[inline(always)]
fn zip<T: Copy, R, const N: usize>(a: [T; N], b: [T; N], f: impl Fn(T, T) -> R) -> [R; N] {
    from_fn(|i| f(a[i], b[i]))
}

impl<const TILES: bool> Simd for Scalar<TILES> {
    type I = [i32; 4];
    type H = [i16; 8];
    type F = [f32; 4];

    const LANES: usize = 4;
    const REGISTERS: usize = 0;

    super::instructions! {
        fn splat(x: i32) -> [i32; 4] { [x; 4] }
        #[memory] fn load(from: *const i32) -> [i32; 4] { from.cast::<[i32; 4]>().read_unaligned() }
        #[memory] fn store(to: *mut i32, x: [i32; 4]) { to.cast::<[i32; 4]>().write_unaligned(x) }
        #[memory] fn store_bytes(to: *mut u8, x: [i32; 4]) {
            to.cast::<[u8; 4]>().write_unaligned(x.map(|x| x as u8))
        }
        #[memory] fn store_words(to: *mut i16, x: [i32; 4]) {
            to.cast::<[i16; 4]>().write_unaligned(x.map(|x| x as i16))
        }
        fn add(a: [i32; 4], b: [i32; 4]) -> [i32; 4] { zip(a, b, i32::wrapping_add) }
        fn sub(a: [i32; 4], b: [i32; 4]) -> [i32; 4] { zip(a, b, i32::wrapping_sub) }
        fn max(a: [i32; 4], b: [i32; 4]) -> [i32; 4] { zip(a, b, i32::max) }
        fn min(a: [i32; 4], b: [i32; 4]) -> [i32; 4] { zip(a, b, i32::min) }
        fn shift_right(x: [i32; 4], by: [i32; 4]) -> [i32; 4] { zip(x, by, |x, by| x >> (by & 31)) }
        fn largest(x: [i32; 4]) -> i32 { x[0].max(x[1]).max(x[2].max(x[3])) }
        fn sum(x: [i32; 4]) -> i32 { x.into_iter().fold(0, i32::wrapping_add) }
        fn equal(a: [i32; 4], b: [i32; 4]) -> u32 {
            (0..4).map(|i| u32::from(a[i] == b[i]) << i).sum()
        }
        #[memory] fn broadcast_bytes(from: *const u8) -> [i32; 4] {
            [from.cast::<i32>().read_unaligned(); 4]
        }
        fn dot(sums: [i32; 4], a: [i32; 4], w: [i32; 4]) -> [i32; 4] {
            from_fn(|i| {
                let (a, w) = (a[i].to_ne_bytes(), w[i].to_ne_bytes());
                let products = zip(a, w, |a, w| i32::from(a) * i32::from(w.cast_signed()));
                products.into_iter().fold(sums[i], i32::wrapping_add)
            })
        }
        fn dot_words(sums: [i32; 4], a: [i32; 4], w: [i32; 4]) -> [i32; 4] {
            // The lower half, then the upper one.
            from_fn(|i| {
                let low = i32::from(a[i] as i16) * i32::from(w[i] as i16);
                low.wrapping_add((a[i] >> 16) * (w[i] >> 16)).wrapping_add(sums[i])
            })
        }
        fn splat_16(x: i16) -> [i16; 8] { [x; 8] }
        #[memory] fn load_16(from: *const i16) -> [i16; 8] {
            from.cast::<[i16; 8]>().read_unaligned()
        }
        #[memory] fn store_16(to: *mut i16, x: [i16; 8]) {
            to.cast::<[i16; 8]>().write_unaligned(x)
        }
        #[memory] fn store_bytes_16(to: *mut u8, x: [i16; 8]) {
            to.cast::<[u8; 8]>().write_unaligned(x.map(|x| x as u8))
        }
        fn add_16(a: [i16; 8], b: [i16; 8]) -> [i16; 8] { zip(a, b, i16::wrapping_add) }
        fn and_16(a: [i16; 8], b: [i16; 8]) -> [i16; 8] { zip(a, b, |a, b| a & b) }
        fn max_16(a: [i16; 8], b: [i16; 8]) -> [i16; 8] { zip(a, b, i16::max) }
        fn min_16(a: [i16; 8], b: [i16; 8]) -> [i16; 8] { zip(a, b, i16::min) }
        fn mul_q15(a: [i16; 8], b: [i16; 8]) -> [i16; 8] {
            zip(a, b, |a, b| ((i32::from(a) * i32::from(b) + (1 << 14)) >> 15) as i16)
        }
        fn shift_left_4(x: [i16; 8]) -> [i16; 8] { x.map(|x| x << 4) }
        fn shift_right_11(x: [i16; 8]) -> [i16; 8] { x.map(|x| (x as u16 >> 11) as i16) }
        fn shift_right_16(x: [i16; 8], by: [i16; 8]) -> [i16; 8] {
            zip(x, by, |x, by| (x as u16 >> (by & 15)) as i16)
        }
        fn narrow(a: [i32; 4], b: [i32; 4]) -> [i16; 8] {
            let narrow = |x: i32| x.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
            from_fn(|i| narrow(if i < 4 { a[i] } else { b[i - 4] }))
        }
        fn add_pairs(sums: [i32; 4], x: [i16; 8]) -> [i32; 4] {
            from_fn(|i| sums[i] + i32::from(x[2 * i]) + i32::from(x[2 * i + 1]))
        }
        fn splat_f(x: f32) -> [f32; 4] { [x; 4] }
        #[memory] fn load_f(from: *const f32) -> [f32; 4] {
            from.cast::<[f32; 4]>().read_unaligned()
        }
        #[memory] fn store_f(to: *mut f32, x: [f32; 4]) {
            to.cast::<[f32; 4]>().write_unaligned(x)
        }
        fn mul_f(a: [f32; 4], b: [f32; 4]) -> [f32; 4] { zip(a, b, |a, b| a * b) }
        fn mul_add_f(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
            from_fn(|i| a[i] * b[i] + c[i])
        }
        fn max_f(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
            zip(a, b, |a, b| if a > b { a } else { b })
        }
        fn min_f(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
            zip(a, b, |a, b| if a < b { a } else { b })
        }
        fn truncate(x: [f32; 4], low: [f32; 4], high: [f32; 4]) -> [i32; 4] {
            from_fn(|i| if x[i].is_nan() { 0 } else { x[i].max(low[i]).min(high[i]) as i32 })
        }
        fn to_float(x: [i32; 4]) -> [f32; 4] { x.map(|x| x as f32) }
        fn to_int(x: [f32; 4]) -> [i32; 4] { x.map(|x| x.round_ties_even() as i32) }
    }

    #[cfg(all(test, target_arch = "x86_64"))]
    fn has_tiles(self) -> bool {
        TILES
    }

    #[cfg(all(test, target_arch = "x86_64"))]
    unsafe fn multiply_tiles<const IS_WIDE: bool>(self, of: &super::Product, sums: *mut i32) {
        use super::amx::emulated;
        // SAFETY: the caller's.
        unsafe {
            if IS_WIDE {
                emulated::multiply::<2>(of, sums)
            } else {
                emulated::multiply::<1>(of, sums)
            }
        }
    }
}
