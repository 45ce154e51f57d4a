//! What the tests of several backends need.

pub mod frames;
pub mod netns;
