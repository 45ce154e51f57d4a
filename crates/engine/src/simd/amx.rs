//! AMX: registers that hold a matrix, a *tile* of 16 rows of 64 bytes, and the product of two in
//! one instruction. All else is done by AVX-512 with VNNI.
//!
//! The compiler knows nothing of tiles on its stable channel, so the instructions stand in `asm!`,
//! from the first load to the last store, for the compiler may use registers between two of them.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::Product;

/// Whether the processor multiplies tiles of bytes, and the kernel lets this process: threads that
/// do have 8 KiB more to save, so Linux wants to be asked, once for each process.
pub(super) fn is_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| cfg!(target_os = "linux") && is_there() && request())
}

/// Only for processors with AVX-512, for `xgetbv` needs less than that.
fn is_there() -> bool {
    // EDX of leaf 7: AMX-TILE and AMX-INT8.
    const FEATURES: u32 = 1 << 24 | 1 << 25;
    // XCR0: the kernel saves the configuration and the contents of tiles.
    const SAVED: u32 = 1 << 17 | 1 << 18;
    let saved: u32;
    // SAFETY: a processor with AVX-512 in use has `xgetbv`, which only reads.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    __cpuid_count(7, 0).edx & FEATURES == FEATURES && saved & SAVED == SAVED
}

/// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA)`; std has no call for it.
fn request() -> bool {
    let result: i64;
    // SAFETY: the call changes nothing but what this process may do; `syscall` overwrites RCX and
    // R11.
    unsafe {
        asm!("syscall", inlateout("rax") 158_i64 => result, in("rdi") 0x1023, in("rsi") 18,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row, for each tile.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Gives tiles their full size.
///
/// # Safety
/// [`is_permitted`].
#[inline(always)]
pub(super) unsafe fn configure() {
    // SAFETY: the caller's; what is read is a valid configuration.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(readonly, nostack, preserves_flags));
    }
}

/// Empties the tiles, so that the kernel need not save them.
///
/// # Safety
/// [`is_permitted`].
#[inline(always)]
pub(super) unsafe fn release() {
    // SAFETY: the caller's.
    unsafe {
        asm!("tilerelease",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nomem, nostack, preserves_flags));
    }
}

/// 32 rows by 32 columns. Tiles 0 to 3 hold sums (rows 0 and columns 0, 0 and 16, 16 and 0, 16 and
/// 16), 4 and 5 activations, 6 and 7 weights.
///
/// # Safety
/// After [`configure`]; as for [`Product`], and 32 rows of 32 sums can be written.
#[inline(always)]
pub(super) unsafe fn two(product: &Product, sums: *mut i32) {
    let Product { a, stride, blocks, weights, width, bias } = *product;
    // SAFETY: the caller's. A load or store moves 16 rows of 64 bytes, as far apart as the index
    // register says: the bias is one row, 16 times.
    unsafe {
        asm!(
            "tileloadd tmm0, [{bias} + {none}*1]",
            "tileloadd tmm1, [{bias} + {none}*1 + 64]",
            "tileloadd tmm2, [{bias} + {none}*1]",
            "tileloadd tmm3, [{bias} + {none}*1 + 64]",
            "2:",
            "tileloadd tmm4, [{upper} + {stride}*1]",
            "tileloadd tmm6, [{weights} + {weights_stride}*1]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{weights} + {weights_stride}*1 + 64]",
            "tdpbusd tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{lower} + {stride}*1]",
            "tdpbusd tmm2, tmm5, tmm6",
            "tdpbusd tmm3, tmm5, tmm7",
            "add {upper}, 64",
            "add {lower}, 64",
            "add {weights}, {weights_step}",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{sums} + {sums_stride}*1], tmm0",
            "tilestored [{sums} + {sums_stride}*1 + 64], tmm1",
            "tilestored [{sums} + {sums_stride}*1 + 2048], tmm2",
            "tilestored [{sums} + {sums_stride}*1 + 2112], tmm3",
            bias = in(reg) bias,
            none = in(reg) 0_usize,
            upper = inout(reg) a => _,
            lower = inout(reg) a.add(16 * stride) => _,
            stride = in(reg) stride,
            weights = inout(reg) weights => _,
            weights_stride = in(reg) 4 * width,
            weights_step = in(reg) 64 * width,
            blocks = inout(reg) blocks => _,
            sums = in(reg) sums,
            sums_stride = in(reg) 128_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// The same by 16 columns; the sums' rows are as far apart.
///
/// # Safety
/// As for [`two`].
#[inline(always)]
pub(super) unsafe fn one(product: &Product, sums: *mut i32) {
    let Product { a, stride, blocks, weights, width, bias } = *product;
    // SAFETY: as in `two`.
    unsafe {
        asm!(
            "tileloadd tmm0, [{bias} + {none}*1]",
            "tileloadd tmm2, [{bias} + {none}*1]",
            "2:",
            "tileloadd tmm4, [{upper} + {stride}*1]",
            "tileloadd tmm6, [{weights} + {weights_stride}*1]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{lower} + {stride}*1]",
            "tdpbusd tmm2, tmm5, tmm6",
            "add {upper}, 64",
            "add {lower}, 64",
            "add {weights}, {weights_step}",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{sums} + {sums_stride}*1], tmm0",
            "tilestored [{sums} + {sums_stride}*1 + 2048], tmm2",
            bias = in(reg) bias,
            none = in(reg) 0_usize,
            upper = inout(reg) a => _,
            lower = inout(reg) a.add(16 * stride) => _,
            stride = in(reg) stride,
            weights = inout(reg) weights => _,
            weights_stride = in(reg) 4 * width,
            weights_step = in(reg) 64 * width,
            blocks = inout(reg) blocks => _,
            sums = in(reg) sums,
            sums_stride = in(reg) 128_usize,
            out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            options(nostack),
        );
    }
}

/// The instructions as the manual defines them, and `two` and `one` written with them.
#[cfg(test)]
pub(super) mod emulated {
    use crate::simd::Product;

    type Tile = [[u8; 64]; 16];

    unsafe fn load(from: *const u8, stride: usize) -> Tile {
        // SAFETY: as the instruction's.
        std::array::from_fn(|row| unsafe { from.add(row * stride).cast::<[u8; 64]>().read() })
    }

    unsafe fn store(to: *mut u8, stride: usize, tile: &Tile) {
        for (row, bytes) in tile.iter().enumerate() {
            // SAFETY: as the instruction's.
            unsafe { to.add(row * stride).cast::<[u8; 64]>().write(*bytes) };
        }
    }

    fn tdpbusd(sums: &mut Tile, a: &Tile, w: &Tile) {
        for m in 0..16 {
            for k in 0..16 {
                for n in 0..16 {
                    let at: &mut [u8; 4] = (&mut sums[m][4 * n..][..4]).try_into().unwrap();
                    let products = (0..4).map(|i| {
                        i32::from(a[m][4 * k + i]) * i32::from(w[k][4 * n + i].cast_signed())
                    });
                    let sum = products.fold(i32::from_le_bytes(*at), i32::wrapping_add);
                    *at = sum.to_le_bytes();
                }
            }
        }
    }

    /// With `V` vectors of columns: 2 as in `two`, 1 as in `one`.
    pub unsafe fn multiply<const V: usize>(product: &Product, sums: *mut i32) {
        let Product { a, stride, blocks, weights, width, bias } = *product;
        for (half, v) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            if v == V {
                continue;
            }
            // SAFETY: the caller's.
            unsafe {
                let mut sum = load(bias.add(16 * v).cast(), 0);
                for block in 0..blocks {
                    let a = load(a.add(16 * half * stride + 64 * block), stride);
                    let w = load(weights.add(block * 64 * width + 64 * v).cast(), 4 * width);
                    tdpbusd(&mut sum, &a, &w);
                }
                store(sums.add(512 * half + 16 * v).cast(), 128, &sum);
            }
        }
    }
}
