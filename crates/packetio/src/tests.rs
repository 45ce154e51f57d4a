//! What the tests of several backends need.

mod faulty;
pub mod frames;
pub mod netns;
#[cfg(not(feature = "dpdk"))]
mod without_dpdk;
