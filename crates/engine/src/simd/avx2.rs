//! AVX2 with FMA: 8 lanes; with AVX-VNNI a product of bytes is one instruction instead of three.

use std::arch::x86_64::*;

use super::{Simd, Work};

/// AVX2, FMA.
#[derive(Clone, Copy)]
struct Avx2(());

/// The same with AVX-VNNI.
#[derive(Clone, Copy)]
struct AvxVnni(());

/// # Safety
/// The processor knows the instructions.
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) unsafe fn run<W: Work>(work: W) {
    work.run(Avx2(()));
}

/// # Safety
/// The processor knows the instructions.
#[target_feature(enable = "avxvnni,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) unsafe fn run_vnni<W: Work>(work: W) {
    work.run(AvxVnni(()));
}

/// Quarters 0, 2, 1, 3: what puts in order the result of an instruction that works on halves.
const HALVES: i32 = 0b11_01_10_00;

macro_rules! avx2 {
    ($token:ident, |$sums:ident, $a:ident, $w:ident| $dot:block $words:block) => {
        impl Simd for $token {
            type I = __m256i;
            type H = __m256i;
            type F = __m256;

            const LANES: usize = 8;
            const REGISTERS: usize = 16;

            super::instructions! {
                fn splat(x: i32) -> __m256i { _mm256_set1_epi32(x) }
                #[memory] fn load(from: *const i32) -> __m256i { _mm256_loadu_si256(from.cast()) }
                #[memory] fn store(to: *mut i32, x: __m256i) { _mm256_storeu_si256(to.cast(), x) }
                #[memory] fn store_bytes(to: *mut u8, x: __m256i) {
                    let words = _mm256_packus_epi32(x, x);
                    let bytes = _mm256_packus_epi16(words, words);
                    let (low, high) =
                        (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
                    _mm_storel_epi64(to.cast(), _mm_unpacklo_epi32(low, high))
                }
                #[memory] fn store_words(to: *mut i16, x: __m256i) {
                    let words = _mm256_permute4x64_epi64::<HALVES>(_mm256_packs_epi32(x, x));
                    _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(words))
                }
                fn add(a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(a, b) }
                fn sub(a: __m256i, b: __m256i) -> __m256i { _mm256_sub_epi32(a, b) }
                fn max(a: __m256i, b: __m256i) -> __m256i { _mm256_max_epi32(a, b) }
                fn min(a: __m256i, b: __m256i) -> __m256i { _mm256_min_epi32(a, b) }
                fn shift_right(x: __m256i, by: __m256i) -> __m256i { _mm256_srav_epi32(x, by) }
                fn largest(x: __m256i) -> i32 {
                    let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
                    let four = _mm_max_epi32(low, high);
                    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
                    _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
                }
                fn sum(x: __m256i) -> i32 {
                    let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
                    let four = _mm_add_epi32(low, high);
                    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
                    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
                }
                fn equal(a: __m256i, b: __m256i) -> u32 {
                    let equal = _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b));
                    _mm256_movemask_ps(equal).cast_unsigned()
                }
                #[memory] fn broadcast_bytes(from: *const u8) -> __m256i {
                    _mm256_set1_epi32(from.cast::<i32>().read_unaligned())
                }
                fn dot($sums: __m256i, $a: __m256i, $w: __m256i) -> __m256i $dot
                fn dot_words($sums: __m256i, $a: __m256i, $w: __m256i) -> __m256i $words
                fn splat_16(x: i16) -> __m256i { _mm256_set1_epi16(x) }
                #[memory] fn load_16(from: *const i16) -> __m256i {
                    _mm256_loadu_si256(from.cast())
                }
                #[memory] fn store_16(to: *mut i16, x: __m256i) {
                    _mm256_storeu_si256(to.cast(), x)
                }
                #[memory] fn store_bytes_16(to: *mut u8, x: __m256i) {
                    let bytes = _mm256_permute4x64_epi64::<HALVES>(_mm256_packus_epi16(x, x));
                    _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(bytes))
                }
                fn add_16(a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi16(a, b) }
                fn and_16(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
                fn max_16(a: __m256i, b: __m256i) -> __m256i { _mm256_max_epi16(a, b) }
                fn min_16(a: __m256i, b: __m256i) -> __m256i { _mm256_min_epi16(a, b) }
                fn mul_q15(a: __m256i, b: __m256i) -> __m256i { _mm256_mulhrs_epi16(a, b) }
                fn shift_left_4(x: __m256i) -> __m256i { _mm256_slli_epi16::<4>(x) }
                fn shift_right_11(x: __m256i) -> __m256i { _mm256_srli_epi16::<11>(x) }
                fn shift_right_16(x: __m256i, by: __m256i) -> __m256i {
                    // There is only a form for 32 bits: even lanes, odd lanes, and both together.
                    let even = _mm256_set1_epi32(0xffff);
                    let (x_even, by_even) = (_mm256_and_si256(x, even), _mm256_and_si256(by, even));
                    let low = _mm256_srlv_epi32(x_even, by_even);
                    let high = _mm256_srlv_epi32(x, _mm256_srli_epi32::<16>(by));
                    _mm256_blend_epi16::<0b1010_1010>(low, high)
                }
                fn narrow(a: __m256i, b: __m256i) -> __m256i {
                    _mm256_permute4x64_epi64::<HALVES>(_mm256_packs_epi32(a, b))
                }
                fn add_pairs(sums: __m256i, x: __m256i) -> __m256i {
                    _mm256_add_epi32(sums, _mm256_madd_epi16(x, _mm256_set1_epi16(1)))
                }
                fn splat_f(x: f32) -> __m256 { _mm256_set1_ps(x) }
                #[memory] fn load_f(from: *const f32) -> __m256 { _mm256_loadu_ps(from) }
                #[memory] fn store_f(to: *mut f32, x: __m256) { _mm256_storeu_ps(to, x) }
                fn mul_f(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
                fn mul_add_f(a: __m256, b: __m256, c: __m256) -> __m256 {
                    _mm256_fmadd_ps(a, b, c)
                }
                fn max_f(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
                fn min_f(a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
                fn truncate(x: __m256, low: __m256, high: __m256) -> __m256i {
                    let is_number = _mm256_cmp_ps::<_CMP_ORD_Q>(x, x);
                    let cut = _mm256_min_ps(_mm256_max_ps(x, low), high);
                    _mm256_cvttps_epi32(_mm256_and_ps(is_number, cut))
                }
                fn to_float(x: __m256i) -> __m256 { _mm256_cvtepi32_ps(x) }
                fn to_int(x: __m256) -> __m256i { _mm256_cvtps_epi32(x) }
            }
        }
    };
}

avx2!(Avx2, |sums, a, w| {
    // Pairs of products fit 16 bits, for `a` has 7.
    let pairs = _mm256_maddubs_epi16(a, w);
    _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
} { _mm256_add_epi32(sums, _mm256_madd_epi16(a, w)) });
avx2!(AvxVnni, |sums, a, w| { _mm256_dpbusd_avx_epi32(sums, a, w) } {
    _mm256_dpwssd_avx_epi32(sums, a, w)
});
