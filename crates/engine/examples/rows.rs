//! Answers rows from the standard input, to compare instruction sets, processors and the trainer's
//! reference.
//!
//!     cargo run --release -p engine --example rows -- MODEL.onnx [RANGES.csv] \
//!         [--isa NAME] [--batch ROWS] [--float]
//!     cargo run --release -p engine --example rows -- --list
//!
//! A row is little-endian f32: the series, channel by channel, then the context. An answer is the
//! class and the confidence in Q15, both u16; with `--float`, the confidence is an f32. `--list`
//! names the instruction sets of this processor.

use std::error::Error;
use std::io::{self, Read, Write};
use std::{env, fs};

use engine::{Answer, Isa, Network, Ranges};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut files, mut isa, mut batch, mut is_float) = (vec![], None, 64, false);
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => {
                Isa::available().iter().for_each(|isa| println!("{}", isa.name()));
                return Ok(());
            }
            "--isa" => {
                let name = args.next().unwrap_or_default();
                isa = Some(Isa::named(&name).ok_or("this processor does not know the set")?);
            }
            "--batch" => batch = args.next().unwrap_or_default().parse()?,
            "--float" => is_float = true,
            _ => files.push(arg),
        }
    }
    let ranges = files.get(1).map(fs::read_to_string).transpose()?;
    let ranges = ranges.map(|text| Ranges::parse(&text)).transpose()?;
    let model = fs::read(files.first().ok_or("usage: rows MODEL.onnx [RANGES.csv]")?)?;
    let mut network = Network::compile(&model, ranges.as_ref())?;
    if let Some(isa) = isa {
        network.set_isa(isa);
    }

    let mut bytes = vec![];
    io::stdin().lock().read_to_end(&mut bytes)?;
    let numbers: Vec<f32> =
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let shape = network.shape();
    let series_len = shape.channels * shape.places;
    let (mut series, mut context) = (vec![], vec![]);
    for row in numbers.chunks_exact(series_len + shape.context) {
        series.extend(&row[..series_len]);
        context.extend(&row[series_len..]);
    }
    let mut answers = vec![Answer::default(); series.len() / series_len];
    let mut scratch = network.scratch();
    for (i, answers) in answers.chunks_mut(batch).enumerate() {
        let (series, context) =
            (&series[i * batch * series_len..], &context[i * batch * shape.context..]);
        network.run(&mut scratch, series, context, answers);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for Answer { class, confidence } in answers {
        out.write_all(&class.to_le_bytes())?;
        match is_float {
            true => out.write_all(&confidence.to_le_bytes())?,
            false => out.write_all(&((confidence * 32_768.0) as u16).to_le_bytes())?,
        }
    }
    Ok(out.flush()?)
}
