//! Instruction sets: one trait, implemented once per set; kernels are written against the trait.
//!
//! A value of an implementing type is a *token*: it exists only where the processor has been seen
//! to know the instructions, so its methods are safe to call. Only loads and stores, which take
//! pointers, are not.
//!
//! Everything is `inline(always)` up to [`Isa::run`], whose functions enable the instructions; what
//! is not inlined there would be compiled without them.

mod scalar;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

/// The longest vector: numbers of 32 bits.
pub(crate) const LANES_MAX: usize = 16;

/// Vectors of an instruction set. `I` has `LANES` numbers of 32 bits, `H` twice as many of 16.
pub(crate) trait Simd: Copy {
    type I: Copy;
    type H: Copy;
    type F: Copy;

    const LANES: usize;
    /// Vector registers: how many sums a tile may hold at once.
    const REGISTERS: usize;

    fn splat(self, x: i32) -> Self::I;
    /// # Safety
    /// `LANES` numbers can be read.
    unsafe fn load(self, from: *const i32) -> Self::I;
    /// # Safety
    /// `LANES` numbers can be written.
    unsafe fn store(self, to: *mut i32, x: Self::I);
    /// Stores each lane, which is 0 to 255, as a byte.
    ///
    /// # Safety
    /// `LANES` bytes can be written.
    unsafe fn store_bytes(self, to: *mut u8, x: Self::I);
    /// Stores each lane, which is 0 to 32767, as a word.
    ///
    /// # Safety
    /// `LANES` words can be written.
    unsafe fn store_words(self, to: *mut i16, x: Self::I);
    fn add(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub(self, a: Self::I, b: Self::I) -> Self::I;
    fn max(self, a: Self::I, b: Self::I) -> Self::I;
    fn min(self, a: Self::I, b: Self::I) -> Self::I;
    /// Arithmetic, each lane by its own count of 0 to 31.
    fn shift_right(self, x: Self::I, by: Self::I) -> Self::I;
    fn largest(self, x: Self::I) -> i32;
    fn sum(self, x: Self::I) -> i32;
    /// A bit for each lane that is equal.
    fn equal(self, a: Self::I, b: Self::I) -> u32;

    /// Four bytes in each lane.
    ///
    /// # Safety
    /// Four bytes can be read.
    unsafe fn broadcast_bytes(self, from: *const u8) -> Self::I;
    /// `sums + Σ a·w` over the four bytes of each lane: `a` of 0 to 127, `w` of −127 to 127, so
    /// that no form of the instruction saturates.
    fn dot(self, sums: Self::I, a: Self::I, w: Self::I) -> Self::I;
    /// `sums + Σ a·w` over the two words of each lane, of which all of `a` are equal; the sums fit.
    fn dot_words(self, sums: Self::I, a: Self::I, w: Self::I) -> Self::I;
    /// As `dot` with `a` of 0 to 255 and `w` of −64 to 64.
    #[inline(always)]
    fn dot_bytes(self, sums: Self::I, a: Self::I, w: Self::I) -> Self::I {
        self.dot(sums, a, w)
    }

    fn splat_16(self, x: i16) -> Self::H;
    /// # Safety
    /// `2·LANES` numbers can be read.
    unsafe fn load_16(self, from: *const i16) -> Self::H;
    /// # Safety
    /// `2·LANES` numbers can be written.
    unsafe fn store_16(self, to: *mut i16, x: Self::H);
    /// Stores each lane, which is 0 to 255, as a byte.
    ///
    /// # Safety
    /// `2·LANES` bytes can be written.
    unsafe fn store_bytes_16(self, to: *mut u8, x: Self::H);
    fn add_16(self, a: Self::H, b: Self::H) -> Self::H;
    fn and_16(self, a: Self::H, b: Self::H) -> Self::H;
    fn max_16(self, a: Self::H, b: Self::H) -> Self::H;
    fn min_16(self, a: Self::H, b: Self::H) -> Self::H;
    /// `(a·b + 2¹⁴) >> 15`: the rounded product of numbers in Q15. Not both may be −2¹⁵.
    fn mul_q15(self, a: Self::H, b: Self::H) -> Self::H;
    fn shift_left_4(self, x: Self::H) -> Self::H;
    fn shift_right_11(self, x: Self::H) -> Self::H;
    /// Logical, each lane by its own count of 0 to 15.
    fn shift_right_16(self, x: Self::H, by: Self::H) -> Self::H;
    /// The lanes of both, saturated, in order.
    fn narrow(self, a: Self::I, b: Self::I) -> Self::H;
    /// `sums` plus the lanes of `x`, neighbours together.
    fn add_pairs(self, sums: Self::I, x: Self::H) -> Self::I;

    fn splat_f(self, x: f32) -> Self::F;
    /// # Safety
    /// `LANES` numbers can be read.
    unsafe fn load_f(self, from: *const f32) -> Self::F;
    /// # Safety
    /// `LANES` numbers can be written.
    unsafe fn store_f(self, to: *mut f32, x: Self::F);
    fn mul_f(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a·b + c`, rounded once where the processor can.
    fn mul_add_f(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn max_f(self, a: Self::F, b: Self::F) -> Self::F;
    fn min_f(self, a: Self::F, b: Self::F) -> Self::F;
    /// Cut to `low` and `high`, and without its fraction. NaN is 0.
    fn truncate(self, x: Self::F, low: Self::F, high: Self::F) -> Self::I;
    fn to_float(self, x: Self::I) -> Self::F;
    /// To the nearest integer, of two the even one. The number fits.
    fn to_int(self, x: Self::F) -> Self::I;

    /// Whether whole matrices can be multiplied.
    #[inline(always)]
    fn has_tiles(self) -> bool {
        false
    }
    /// Multiplies by 32 columns if `IS_WIDE`, by 16 if not. A row of sums begins 32 numbers after
    /// the one before.
    ///
    /// # Safety
    /// `has_tiles`, as for [`Product`], and `TILE_ROWS` rows of sums can be written.
    #[inline(always)]
    unsafe fn multiply_tiles<const IS_WIDE: bool>(self, _: &Product, _: *mut i32) {}
}

/// Rows that a product of tiles takes.
pub(crate) const TILE_ROWS: usize = 32;
/// Fewer rows than this are faster without.
pub(crate) const TILE_ROWS_MIN: usize = 16;
/// Inputs of a row that a tile holds.
pub(crate) const TILE_INPUTS: usize = 64;

/// Activations, weights and bias that matrix instructions multiply: `bias + a·weights`.
///
/// # Safety
/// `TILE_ROWS` rows of `a` have `blocks` times `TILE_INPUTS` bytes, and as many inputs have
/// weights. There is at least one block. Weights and bias have the columns asked for.
pub(crate) struct Product {
    pub a: *const u8,
    /// Bytes from a row to the next.
    pub stride: usize,
    pub blocks: usize,
    /// `[inputs/4][width][4]`
    pub weights: *const i8,
    pub width: usize,
    pub bias: *const i32,
}

/// Implements methods that are safe because the token exists, and those that are not. The bodies
/// are calls of intrinsics, which have no other precondition than the instruction set and, of loads
/// and stores, what the trait asks for.
macro_rules! instructions {
    ($($(#[$unsafe:ident])? fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?
        $body:block)*) => {
        $($crate::simd::instructions!(@ $($unsafe)? $name ($($arg: $type),*) ($($out)?) $body);)*
    };
    (@ memory $name:ident ($($arg:ident: $type:ty),*) ($($out:ty)?) $body:block) => {
        #[inline(always)]
        unsafe fn $name(self, $($arg: $type),*) $(-> $out)? {
            // SAFETY: the token proves the instruction set, and the caller the memory.
            #[allow(clippy::cast_ptr_alignment)]
            unsafe { $body }
        }
    };
    (@ $name:ident ($($arg:ident: $type:ty),*) ($($out:ty)?) $body:block) => {
        #[inline(always)]
        fn $name(self, $($arg: $type),*) $(-> $out)? {
            // SAFETY: the token proves that the processor knows the instructions.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    };
}
use instructions;

/// Work that is compiled once for each instruction set.
pub(crate) trait Work {
    /// Must be `inline(always)`.
    fn run<S: Simd>(self, s: S);

    /// Rows that go through layers of bytes together.
    fn rows(&self) -> usize {
        0
    }
}

/// An instruction set that this processor knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(all(test, target_arch = "x86_64"))]
    EmulatedTiles,
    Scalar,
}

impl Isa {
    /// What needs nothing of the processor.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// The instruction sets of this processor, as a rule the fastest first.
    pub fn available() -> Vec<Self> {
        let mut found = vec![];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq") {
                if has!("avx512vnni") {
                    if amx::is_permitted() {
                        found.push(Self(Kind::Amx));
                    }
                    found.push(Self(Kind::Avx512Vnni));
                }
                found.push(Self(Kind::Avx512));
            }
            if has!("avx2") && has!("fma") {
                if has!("avxvnni") {
                    found.push(Self(Kind::AvxVnni));
                }
                found.push(Self(Kind::Avx2));
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as has;
            if has!("neon") {
                if has!("dotprod") {
                    found.push(Self(Kind::NeonDot));
                }
                found.push(Self(Kind::Neon));
            }
        }
        #[cfg(all(test, target_arch = "x86_64"))]
        found.push(Self(Kind::EmulatedTiles));
        found.push(Self::SCALAR);
        found
    }

    /// The instruction set of this name, if the processor knows it.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|isa| isa.name() == name)
    }

    /// `amx`, `avx512vnni`, `avx512`, `avxvnni`, `avx2`, `neon-dotprod`, `neon` or `scalar`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => "amx",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDot => "neon-dotprod",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            #[cfg(all(test, target_arch = "x86_64"))]
            Kind::EmulatedTiles => "emulated",
            Kind::Scalar => "scalar",
        }
    }

    /// Runs the work with these instructions.
    pub(crate) fn run<W: Work>(self, work: W) {
        match self.0 {
            // SAFETY: `available`, which alone makes these values, has seen the instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => unsafe {
                let has_tiles = work.rows() >= TILE_ROWS_MIN;
                avx512::run_vnni(work, has_tiles);
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => unsafe { avx512::run_vnni(work, false) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::run(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => unsafe { avx2::run_vnni(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::run(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDot => unsafe { neon::run_dotprod(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { neon::run(work) },
            #[cfg(all(test, target_arch = "x86_64"))]
            Kind::EmulatedTiles => work.run(scalar::Scalar::<true>),
            Kind::Scalar => work.run(scalar::Scalar::<false>),
        }
    }
}
