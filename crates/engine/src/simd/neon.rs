//! NEON: 4 lanes; with the dot product of Armv8.2 a product of bytes is one instruction instead of
//! five.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Simd, Work};

/// NEON.
#[derive(Clone, Copy)]
struct Neon(());

/// The same with `dotprod`.
#[derive(Clone, Copy)]
struct NeonDot(());

/// # Safety
/// The processor knows the instructions.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run<W: Work>(work: W) {
    work.run(Neon(()));
}

/// # Safety
/// The processor knows the instructions.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn run_dotprod<W: Work>(work: W) {
    work.run(NeonDot(()));
}

macro_rules! neon {
    ($token:ident, |$sums:ident, $a:ident, $w:ident| $dot:block) => {
        impl Simd for $token {
            type I = int32x4_t;
            type H = int16x8_t;
            type F = float32x4_t;

            const LANES: usize = 4;
            const REGISTERS: usize = 32;

            super::instructions! {
                fn splat(x: i32) -> int32x4_t { vdupq_n_s32(x) }
                #[memory] fn load(from: *const i32) -> int32x4_t { vld1q_s32(from) }
                #[memory] fn store(to: *mut i32, x: int32x4_t) { vst1q_s32(to, x) }
                #[memory] fn store_bytes(to: *mut u8, x: int32x4_t) {
                    let words = vmovn_s32(x);
                    let bytes = vmovn_s16(vcombine_s16(words, words));
                    to.cast::<u32>().write_unaligned(vget_lane_u32::<0>(vreinterpret_u32_s8(bytes)))
                }
                #[memory] fn store_words(to: *mut i16, x: int32x4_t) {
                    vst1_s16(to, vmovn_s32(x))
                }
                fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t { vaddq_s32(a, b) }
                fn sub(a: int32x4_t, b: int32x4_t) -> int32x4_t { vsubq_s32(a, b) }
                fn max(a: int32x4_t, b: int32x4_t) -> int32x4_t { vmaxq_s32(a, b) }
                fn min(a: int32x4_t, b: int32x4_t) -> int32x4_t { vminq_s32(a, b) }
                fn shift_right(x: int32x4_t, by: int32x4_t) -> int32x4_t {
                    vshlq_s32(x, vnegq_s32(by))
                }
                fn largest(x: int32x4_t) -> i32 { vmaxvq_s32(x) }
                fn sum(x: int32x4_t) -> i32 { vaddvq_s32(x) }
                fn equal(a: int32x4_t, b: int32x4_t) -> u32 {
                    let bits = vld1q_u32([1, 2, 4, 8].as_ptr());
                    vaddvq_u32(vandq_u32(vceqq_s32(a, b), bits))
                }
                #[memory] fn broadcast_bytes(from: *const u8) -> int32x4_t {
                    vdupq_n_s32(from.cast::<i32>().read_unaligned())
                }
                fn dot($sums: int32x4_t, $a: int32x4_t, $w: int32x4_t) -> int32x4_t $dot
                fn dot_words(sums: int32x4_t, a: int32x4_t, w: int32x4_t) -> int32x4_t {
                    let (a, w) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(w));
                    let (first, second) = (vuzp1q_s16(w, w), vuzp2q_s16(w, w));
                    let sums = vmlal_lane_s16::<0>(sums, vget_low_s16(first), vget_low_s16(a));
                    vmlal_lane_s16::<1>(sums, vget_low_s16(second), vget_low_s16(a))
                }
                fn dot_bytes(sums: int32x4_t, a: int32x4_t, w: int32x4_t) -> int32x4_t {
                    // There is no product of bytes with and without a sign before Armv8.6.
                    let (a, w) = (vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(w));
                    let a_low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(a)));
                    let a_high = vreinterpretq_s16_u16(vmovl_high_u8(a));
                    let (w_low, w_high) = (vmovl_s8(vget_low_s8(w)), vmovl_high_s8(w));
                    let first = vmull_s16(vget_low_s16(a_low), vget_low_s16(w_low));
                    let second = vmull_high_s16(a_low, w_low);
                    let third = vmull_s16(vget_low_s16(a_high), vget_low_s16(w_high));
                    let fourth = vmull_high_s16(a_high, w_high);
                    let (low, high) = (vpaddq_s32(first, second), vpaddq_s32(third, fourth));
                    vaddq_s32(sums, vpaddq_s32(low, high))
                }
                fn splat_16(x: i16) -> int16x8_t { vdupq_n_s16(x) }
                #[memory] fn load_16(from: *const i16) -> int16x8_t { vld1q_s16(from) }
                #[memory] fn store_16(to: *mut i16, x: int16x8_t) { vst1q_s16(to, x) }
                #[memory] fn store_bytes_16(to: *mut u8, x: int16x8_t) {
                    vst1_u8(to, vqmovun_s16(x))
                }
                fn add_16(a: int16x8_t, b: int16x8_t) -> int16x8_t { vaddq_s16(a, b) }
                fn and_16(a: int16x8_t, b: int16x8_t) -> int16x8_t { vandq_s16(a, b) }
                fn max_16(a: int16x8_t, b: int16x8_t) -> int16x8_t { vmaxq_s16(a, b) }
                fn min_16(a: int16x8_t, b: int16x8_t) -> int16x8_t { vminq_s16(a, b) }
                fn mul_q15(a: int16x8_t, b: int16x8_t) -> int16x8_t { vqrdmulhq_s16(a, b) }
                fn shift_left_4(x: int16x8_t) -> int16x8_t { vshlq_n_s16::<4>(x) }
                fn shift_right_11(x: int16x8_t) -> int16x8_t {
                    vreinterpretq_s16_u16(vshrq_n_u16::<11>(vreinterpretq_u16_s16(x)))
                }
                fn shift_right_16(x: int16x8_t, by: int16x8_t) -> int16x8_t {
                    vreinterpretq_s16_u16(vshlq_u16(vreinterpretq_u16_s16(x), vnegq_s16(by)))
                }
                fn narrow(a: int32x4_t, b: int32x4_t) -> int16x8_t {
                    vcombine_s16(vqmovn_s32(a), vqmovn_s32(b))
                }
                fn add_pairs(sums: int32x4_t, x: int16x8_t) -> int32x4_t { vpadalq_s16(sums, x) }
                fn splat_f(x: f32) -> float32x4_t { vdupq_n_f32(x) }
                #[memory] fn load_f(from: *const f32) -> float32x4_t { vld1q_f32(from) }
                #[memory] fn store_f(to: *mut f32, x: float32x4_t) { vst1q_f32(to, x) }
                fn mul_f(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
                fn mul_add_f(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
                    vfmaq_f32(c, a, b)
                }
                fn max_f(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmaxq_f32(a, b) }
                fn min_f(a: float32x4_t, b: float32x4_t) -> float32x4_t { vminq_f32(a, b) }
                fn truncate(x: float32x4_t, low: float32x4_t, high: float32x4_t) -> int32x4_t {
                    // NaN stays NaN until it becomes 0.
                    vcvtq_s32_f32(vminq_f32(vmaxq_f32(x, low), high))
                }
                fn to_float(x: int32x4_t) -> float32x4_t { vcvtq_f32_s32(x) }
                fn to_int(x: float32x4_t) -> int32x4_t { vcvtnq_s32_f32(x) }
            }
        }
    };
}

neon!(Neon, |sums, a, w| {
    let (a, w) = (vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(w));
    // Numbers of 7 bits are the same with a sign.
    let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(w)));
    let high = vpaddlq_s16(vmull_high_s8(a, w));
    vaddq_s32(sums, vpaddq_s32(low, high))
});
neon!(NeonDot, |sums, a, w| {
    // The intrinsic is not stable yet.
    let mut sums = sums;
    asm!(
        ".arch_extension dotprod",
        "sdot {sums:v}.4s, {a:v}.16b, {w:v}.16b",
        sums = inout(vreg) sums, a = in(vreg) a, w = in(vreg) w,
        options(pure, nomem, nostack, preserves_flags),
    );
    sums
});
