//! fenxi's own engine.

mod aligned;
mod channels;
mod compile;
mod dump;
mod error;
mod float;
mod graph;
mod integer;
mod integers;
mod network;
mod onnx;
mod plan;
mod ranges;
#[cfg(test)]
mod reference;
mod simd;
mod tabulated;
#[cfg(test)]
mod tests;
mod trees;
mod wire;

pub use dump::dump;
pub use error::Error;
pub use network::{Answer, Network, Scratch, Shape};
pub use ranges::Ranges;
pub use simd::Isa;
