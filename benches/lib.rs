//! Set-up that the criterion benches and `fenxi-lab bench` share: [`flows`] for the packet's walk,
//! [`series`] for the series' walk. `make bench` runs the criterion benches.

pub mod flows;
pub mod series;
