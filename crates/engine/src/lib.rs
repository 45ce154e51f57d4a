//! fenxi's own engine: small networks and decision trees, in a microsecond or a tenth of one.
//!
//! It compiles an ONNX model when it loads it. What it does not know is refused by the node's name,
//! and another runtime may run it. A compiled network answers in the thread that asks: no queue, no
//! allocation, no failure, whatever floats come in.
//!
//! ```text
//! bytes ─ wire, onnx ─► nodes ─ graph, tabulated ─► plan ─┬─ compile ─► integers ─► integer
//!                                                         ├───────────────────────► quantised
//!                                                         ├───────────────────────► float
//!                                                         └───────────────────────► trees
//! ```
//!
//! * `onnx` reads the file, and `graph` matches its nodes, in one pass, with what is known: a
//!   **plan**. What happens to one integer of the input before the first layer becomes a table
//!   (`tabulated`), so that it needs no code here.
//! * `compile` makes integers of a plan and of the [`Ranges`] that the trainer measured. **What
//!   they mean, and why, stands in `integers`**: read it first. `snapshot` writes them for kernels
//!   and small devices, and for the trainer's reference, which computes the same in NumPy; `kernel`
//!   for fenxi's own program inside the kernel, as it does trees.
//! * `integer` runs them, 32 rows at a time: sums of tables, products of bytes in tiles that stay
//!   in registers, a softmax in 16 bits.
//! * `quantised` runs a network that ONNX's tools have quantised, with ONNX Runtime's own integers;
//!   `float` one without ranges; `trees` run trees.
//! * `simd` has one trait for vectors, and a file for each instruction set ([`Isa`]). Kernels are
//!   written once, against the trait. Integers are equal to the bit in all of them; tests hold them
//!   against `reference`, plain loops that say what is meant.
//!
//! Against ONNX Runtime with one thread (`fenxi-lab bench engine`, EPYC 9004 with AVX-512 VNNI), in
//! batches of 1 and 256: the protocol network is 88 and 6.9 times faster, CNNs 11 and 5 times,
//! trees 20 and 3 times.
//!
//! Layer 0 is always folded into tables. Products with the codes have other integers, so a trial at
//! start must not choose between the two: answers would depend on the machine.

mod aligned;
mod channels;
mod compile;
mod error;
mod float;
mod graph;
mod integer;
mod integers;
mod kernel;
mod layer;
mod network;
mod onnx;
mod plan;
mod quantised;
mod ranges;
#[cfg(test)]
mod reference;
mod simd;
mod snapshot;
mod tabulated;
#[cfg(test)]
mod tests;
mod trees;
pub mod wire;

pub use error::Error;
pub use integer::from_q15;
pub use kernel::kernel;
pub use network::{Answer, Network, RowNs, Scratch, Shape};
pub use ranges::Ranges;
pub use simd::Isa;
pub use snapshot::snapshot;
