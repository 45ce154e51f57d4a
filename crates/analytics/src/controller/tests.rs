//! The plan by hand, against a search, and in a simulated plant.

mod optimum;
mod plant;
mod scenarios;
mod single;
