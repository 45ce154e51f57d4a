//! fenxi's own engine.

mod aligned;
mod compile;
mod error;
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
mod wire;

pub use error::Error;
pub use network::{Answer, Network, Scratch, Shape};
pub use ranges::Ranges;
pub use simd::Isa;
