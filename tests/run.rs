//! Live runs end to end, in network namespaces with veth pairs that each test makes and removes.
//! Skipped by name without root or the programs.

mod backends;
mod behaviour;
mod bypass;
mod capture;
mod ctinfo;
mod devices;
mod dpdk;
mod faults;
mod first;
pub mod inline;
mod kept;
mod kernel;
mod kernel_dscp;
mod kernel_flood;
mod kernel_marks;
mod kernel_rules;
mod kernel_swap;
mod layouts;
mod mark;
mod merged;
mod mirror;
mod outcomes;
mod overload;
mod policy;
mod recording;
mod reload;
mod rules;
mod seeing;
mod segments;
mod shaper;
mod tap;
mod tasks;
mod told;
pub mod traffic;
mod weights;
mod zones;
