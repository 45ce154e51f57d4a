//! The plan by hand, against a search, and in a simulated plant.

mod plant;
mod scenarios;
