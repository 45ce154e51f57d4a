//! Any bytes as a model: it is refused, or answers with classes that it has.
//!
//! The first two bytes say how long the ranges are, which come next; without any, the network is
//! compiled into floats.
#![no_main]

use engine::{Answer, Isa, Network, Ranges};
use libfuzzer_sys::fuzz_target;

const ROWS: usize = 9;

fuzz_target!(|data: &[u8]| {
    let Some((len, rest)) = data.split_first_chunk() else {
        return;
    };
    let Some((ranges, model)) = rest.split_at_checked(u16::from_le_bytes(*len).into()) else {
        return;
    };
    let ranges = std::str::from_utf8(ranges).ok().filter(|text| !text.is_empty());
    let ranges = ranges.and_then(|text| Ranges::parse(text).ok());
    let Ok(mut network) = Network::compile(model, ranges.as_ref()) else {
        return;
    };
    let shape = network.shape();
    let series: Vec<f32> = (0..ROWS * shape.channels * shape.places)
        .map(|i| [f32::NAN, -1e30, 0.0, 40.0, -1500.0, 70_000.0, 0.5][i % 7])
        .collect();
    let context = vec![17.0; ROWS * shape.context];
    let mut scratch = network.scratch();
    for isa in Isa::available() {
        network.set_isa(isa);
        let mut answers = [Answer::default(); ROWS];
        network.run(&mut scratch, &series, &context, &mut answers);
        for answer in answers {
            assert!(usize::from(answer.class) < shape.classes);
        }
    }
});
