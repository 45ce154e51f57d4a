//! Set-up that the criterion benches and `fenxi-lab bench` share: [`flows`] for the packet's walk,
//! [`series`] for the series' walk, in virtual time with a [`virtual_device`]. `make bench` runs
//! the criterion benches.

pub mod flows;
pub mod series;
pub mod virtual_device;
