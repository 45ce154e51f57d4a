//! The definition of an integer network: its numbers as they are compiled, in the order in which
//! they are explained, without padding and packing.
//!
//! `x >> n` is an arithmetic shift; `q15(a, b)` is `(a·b + 2¹⁴) >> 15`.
//!
//! Activations of a convolution are *bytes*: 7 bits without a sign, which the next layer multiplies
//! by weights from −127 to 127. The product of two bytes never saturates in any processor's
//! instruction (`maddubs` of x86 adds two products in 16 bits). All other activations, and the last
//! ones before the scores, are *words*: 12 bits, multiplied by weights from −2047 to 2047. Dense
//! layers are small, so words cost little, and with bytes the class of three flows in a thousand
//! was another than in floats. Sums have 32 bits.
//!
//! ReLU is the lower bound of the clamp, and no zero points are needed. A layer's scale per channel
//! is free, for the next layer's weights absorb it; it is chosen so that requantising is a shift,
//! whose rounding stands in the bias.
//!
//! The idea of integer networks beside the data path: LiteFlow (SIGCOMM 2022), section 3.1.

use crate::aligned::Aligned;
use crate::tabulated::Lookup;

/// A compiled network.
///
/// * An element `x` has the code `elements.row(x)`; the depth is the number of elements that are
///   not 0 once their fractions are cut off.
/// * Layer 0 gives activations from codes and context: see [`First`].
/// * Each of `hidden` gives activations from the ones before: see [`Hidden`].
/// * The class and the confidence come from `output`: see [`Output`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Integers {
    pub places: usize,
    pub elements: Lookup,
    /// How many codes there are.
    pub codes: usize,
    /// Numbers of the context, 0 without one.
    pub context: usize,
    /// Look-ups of numbers of the context, each with the column it reads.
    pub lookups: Vec<(usize, Lookup)>,
    pub first: First,
    pub hidden: Vec<Hidden>,
    pub output: Output,
}

/// The largest activation of bytes and of words.
pub(crate) const BYTE_MAX: i16 = 127;
pub(crate) const WORD_MAX: i16 = 4095;

/// Layer 0, folded with the codes into tables: activations of sums `h`, for which 16 bits suffice
/// whatever the input.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct First {
    pub width: usize,
    /// The largest activation: `BYTE_MAX` or `WORD_MAX`.
    pub top: i16,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A dense layer: `clamp(h, 0, top)` of `h = Σ_p tables[p][code of x[p]] + Σ_t
    /// context[t][row]`.
    Dense {
        /// `[places][codes][width]`
        tables: Aligned<i16>,
        /// Each with its look-up, and `[rows][width]`; the bias stands in one of them.
        context: Vec<(Option<usize>, Vec<i16>)>,
    },
    /// A convolution, for each place p: `clamp(q15(h, multipliers), 0, top)` of `h = bias + Σ_t
    /// taps[t][code of x[p + t − 1]]`, without the taps that reach over an end.
    Convolution {
        /// `[3][codes][width]`
        taps: Vec<i16>,
        bias: Vec<i16>,
        multipliers: Vec<i16>,
    },
}

/// A layer between activations: `clamp((Σ_i a[i]·weights[i] + bias) >> shifts, 0, top)`. In a
/// convolution (3 taps), `a` are the activations of the place before, the place and the place
/// after, 0 beyond the ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hidden {
    pub taps: usize,
    pub outputs: usize,
    /// `[taps·inputs][outputs]`
    pub weights: Vec<i16>,
    pub bias: Vec<i32>,
    pub shifts: Vec<i32>,
    /// The largest activation: `BYTE_MAX` or `WORD_MAX`.
    pub top: i16,
}

/// The last layer and the softmax. Scores are in units of 2⁻¹¹ bits at the largest inverse
/// temperature:
///
/// ```text
/// z[c] = ((Σ_i a[i]·weights[i][c] + 2^(shift−1)) >> shift) + scores[row][c]
/// t[c] = q15(min(max z − z[c], 32767), temperatures[depth])
/// e[c] = 2^(−t[c]/2¹¹) in Q15: see `softmax`
/// ```
///
/// The class is the first of the largest z, its confidence `⌊32767·2¹⁵ / Σ e⌋` in Q15; the
/// probability of class c is `e[c] / Σ e`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Output {
    pub classes: usize,
    /// `[inputs][classes]`
    pub weights: Vec<i16>,
    /// 1 to 30.
    pub shift: i32,
    /// The look-up that says which row of `scores` counts, unless there is only one.
    pub lookup: Option<usize>,
    /// `[rows][classes]`, the bias included.
    pub scores: Vec<i32>,
    /// By depth, Q15.
    pub temperatures: Vec<i16>,
}
