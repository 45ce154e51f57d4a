//! The control plane end to end.
