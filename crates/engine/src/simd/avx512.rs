//! AVX-512 with BW, VL and DQ: 16 lanes; with VNNI a product of bytes is one instruction instead of
//! three.

use std::arch::x86_64::*;

use super::{Product, Simd, Work, amx};

/// AVX-512 F, BW, VL, DQ.
#[derive(Clone, Copy)]
struct Avx512(());

/// The same with VNNI, and maybe the tiles of AMX.
#[derive(Clone, Copy)]
struct Avx512Vnni {
    has_tiles: bool,
}

/// # Safety
/// The processor knows the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) unsafe fn run<W: Work>(work: W) {
    work.run(Avx512(()));
}

/// # Safety
/// The processor knows the instructions; for tiles, [`amx::is_permitted`].
#[target_feature(
    enable = "avx512vnni,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi1,bmi2,lzcnt,popcnt"
)]
pub(super) unsafe fn run_vnni<W: Work>(work: W, has_tiles: bool) {
    // SAFETY: the caller's.
    unsafe {
        if has_tiles {
            amx::configure();
        }
        work.run(Avx512Vnni { has_tiles });
        if has_tiles {
            amx::release();
        }
    }
}

macro_rules! avx512 {
    ($token:ident, |$sums:ident, $a:ident, $w:ident| $dot:block $words:block $($tiles:item)*) => {
        impl Simd for $token {
            type I = __m512i;
            type H = __m512i;
            type F = __m512;

            const LANES: usize = 16;
            const REGISTERS: usize = 32;

            super::instructions! {
                fn splat(x: i32) -> __m512i { _mm512_set1_epi32(x) }
                #[memory] fn load(from: *const i32) -> __m512i { _mm512_loadu_si512(from.cast()) }
                #[memory] fn store(to: *mut i32, x: __m512i) { _mm512_storeu_si512(to.cast(), x) }
                #[memory] fn store_bytes(to: *mut u8, x: __m512i) {
                    _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(x))
                }
                #[memory] fn store_words(to: *mut i16, x: __m512i) {
                    _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(x))
                }
                fn add(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
                fn sub(a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
                fn max(a: __m512i, b: __m512i) -> __m512i { _mm512_max_epi32(a, b) }
                fn min(a: __m512i, b: __m512i) -> __m512i { _mm512_min_epi32(a, b) }
                fn shift_right(x: __m512i, by: __m512i) -> __m512i { _mm512_srav_epi32(x, by) }
                fn largest(x: __m512i) -> i32 { _mm512_reduce_max_epi32(x) }
                fn sum(x: __m512i) -> i32 { _mm512_reduce_add_epi32(x) }
                fn equal(a: __m512i, b: __m512i) -> u32 { _mm512_cmpeq_epi32_mask(a, b).into() }
                #[memory] fn broadcast_bytes(from: *const u8) -> __m512i {
                    _mm512_set1_epi32(from.cast::<i32>().read_unaligned())
                }
                fn dot($sums: __m512i, $a: __m512i, $w: __m512i) -> __m512i $dot
                fn dot_words($sums: __m512i, $a: __m512i, $w: __m512i) -> __m512i $words
                fn splat_16(x: i16) -> __m512i { _mm512_set1_epi16(x) }
                #[memory] fn load_16(from: *const i16) -> __m512i {
                    _mm512_loadu_si512(from.cast())
                }
                #[memory] fn store_16(to: *mut i16, x: __m512i) {
                    _mm512_storeu_si512(to.cast(), x)
                }
                #[memory] fn store_bytes_16(to: *mut u8, x: __m512i) {
                    _mm256_storeu_si256(to.cast(), _mm512_cvtepi16_epi8(x))
                }
                fn add_16(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi16(a, b) }
                fn and_16(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
                fn max_16(a: __m512i, b: __m512i) -> __m512i { _mm512_max_epi16(a, b) }
                fn min_16(a: __m512i, b: __m512i) -> __m512i { _mm512_min_epi16(a, b) }
                fn mul_q15(a: __m512i, b: __m512i) -> __m512i { _mm512_mulhrs_epi16(a, b) }
                fn shift_left_4(x: __m512i) -> __m512i { _mm512_slli_epi16::<4>(x) }
                fn shift_right_11(x: __m512i) -> __m512i { _mm512_srli_epi16::<11>(x) }
                fn shift_right_16(x: __m512i, by: __m512i) -> __m512i { _mm512_srlv_epi16(x, by) }
                fn narrow(a: __m512i, b: __m512i) -> __m512i {
                    // The instruction takes turns between `a` and `b`, 128 bits at a time.
                    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
                    _mm512_permutexvar_epi64(order, _mm512_packs_epi32(a, b))
                }
                fn add_pairs(sums: __m512i, x: __m512i) -> __m512i {
                    _mm512_add_epi32(sums, _mm512_madd_epi16(x, _mm512_set1_epi16(1)))
                }
                fn splat_f(x: f32) -> __m512 { _mm512_set1_ps(x) }
                #[memory] fn load_f(from: *const f32) -> __m512 { _mm512_loadu_ps(from) }
                #[memory] fn store_f(to: *mut f32, x: __m512) { _mm512_storeu_ps(to, x) }
                fn mul_f(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
                fn mul_add_f(a: __m512, b: __m512, c: __m512) -> __m512 {
                    _mm512_fmadd_ps(a, b, c)
                }
                fn max_f(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
                fn min_f(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
                fn truncate(x: __m512, low: __m512, high: __m512) -> __m512i {
                    let is_number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x);
                    let cut = _mm512_min_ps(_mm512_max_ps(x, low), high);
                    _mm512_maskz_cvttps_epi32(is_number, cut)
                }
                fn to_float(x: __m512i) -> __m512 { _mm512_cvtepi32_ps(x) }
                fn to_int(x: __m512) -> __m512i { _mm512_cvtps_epi32(x) }
            }
            $($tiles)*
        }
    };
}

avx512!(Avx512, |sums, a, w| {
    // Pairs of products fit 16 bits, for `a` has 7.
    let pairs = _mm512_maddubs_epi16(a, w);
    _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
} { _mm512_add_epi32(sums, _mm512_madd_epi16(a, w)) });
avx512!(Avx512Vnni, |sums, a, w| { _mm512_dpbusd_epi32(sums, a, w) } {
        _mm512_dpwssd_epi32(sums, a, w)
    }
    #[inline(always)]
    fn has_tiles(self) -> bool {
        self.has_tiles
    }

    #[inline(always)]
    unsafe fn multiply_tiles<const IS_WIDE: bool>(self, product: &Product, sums: *mut i32) {
        // SAFETY: the caller's, and a token that has tiles lives while they are configured.
        unsafe {
            if IS_WIDE { amx::two(product, sums) } else { amx::one(product, sums) }
        }
    }
);
