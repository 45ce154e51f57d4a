//! Criterion benches of the two walks; run with `make bench`.
