//! Writes the integers of a compiled network in the form of safetensors: eight bytes with the
//! length of a JSON header, the header, the numbers.
//!
//!     cargo run -p engine --example dump -- MODEL.onnx RANGES.csv OUT
//!
//! The trainer's reference reads this to compute the same answers in NumPy. What the numbers mean
//! stands in `crates/engine/src/integers.rs`.

use std::error::Error;
use std::{env, fs};

use engine::{Ranges, snapshot};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [model, ranges, out] = &args[..] else {
        return Err("usage: dump MODEL.onnx RANGES.csv OUT".into());
    };
    let ranges = Ranges::parse(&fs::read_to_string(ranges)?)?;
    fs::write(out, snapshot(&fs::read(model)?, Some(&ranges), &[])?)?;
    Ok(())
}
