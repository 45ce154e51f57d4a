//! What the threads are made of: models, devices and rings, as a configuration names them.

pub mod bundle;
pub mod devices;
pub mod inline;
pub mod label_map;
pub mod pipelines;
pub mod profiles;
pub mod session;
pub mod task_check;
pub mod tasks;
