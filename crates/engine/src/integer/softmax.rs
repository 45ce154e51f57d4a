//! Softmax in 16 bits.

use crate::simd::Simd;

/// `2^(−x)` for x from 0 to 1, by a polynomial in Q15: least squares over 2001 points, and exact
/// at 0. Its error is below 2⁻¹³.
pub(crate) const POLYNOMIAL: [i16; 4] = [32_767, -22_645, 7556, -1295];

/// The class of the largest score, and the sum of all exponentials in Q15, which is at least 32767.
/// `is_class` masks columns that are no class; `exponentials` takes one per column.
#[inline(always)]
pub(super) fn softmax<S: Simd>(
    s: S,
    scores: &[i32],
    is_class: &[i16],
    temperature: i16,
    exponentials: &mut [i16],
) -> (usize, u32) {
    let width = scores.len();
    assert!(width.is_multiple_of(2 * S::LANES) && width > 0);
    assert!(is_class.len() == width && exponentials.len() == width);
    // SAFETY: `at` is below `width`, and whole vectors of both kinds fit into it.
    let load = |at: usize| unsafe { s.load(scores.as_ptr().add(at)) };

    let mut largest = load(0);
    for at in (S::LANES..width).step_by(S::LANES) {
        largest = s.max(largest, load(at));
    }
    let largest = s.splat(s.largest(largest));
    let mut class = 0;
    for at in (0..width).step_by(S::LANES).rev() {
        let equal = s.equal(load(at), largest);
        class = if equal == 0 { class } else { at + equal.trailing_zeros() as usize };
    }

    let mut sum = s.splat(0);
    for at in (0..width).step_by(2 * S::LANES) {
        // `narrow` saturates: what lies further below has no probability.
        let below = s.narrow(s.sub(largest, load(at)), s.sub(largest, load(at + S::LANES)));
        let e = exponential(s, s.mul_q15(below, s.splat_16(temperature)));
        // SAFETY: as above.
        unsafe {
            let e = s.and_16(e, s.load_16(is_class.as_ptr().add(at)));
            s.store_16(exponentials.as_mut_ptr().add(at), e);
            sum = s.add_pairs(sum, e);
        }
    }
    (class, s.sum(sum).cast_unsigned())
}

/// `2^(−t/2¹¹)` in Q15, for t from 0 to 32767: a shift by the whole part, and a polynomial of the
/// fraction in Q15.
#[inline(always)]
fn exponential<S: Simd>(s: S, t: S::H) -> S::H {
    let fraction = s.shift_left_4(s.and_16(t, s.splat_16(2047)));
    let [c0, c1, c2, c3] = POLYNOMIAL.map(|c| s.splat_16(c));
    let p = s.add_16(s.mul_q15(fraction, c3), c2);
    let p = s.add_16(s.mul_q15(fraction, p), c1);
    let p = s.add_16(s.mul_q15(fraction, p), c0);
    s.shift_right_16(p, s.shift_right_11(t))
}
