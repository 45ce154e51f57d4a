//! `fenxi-lab generate`: traffic made from captures.

use packetio::TxCounts;
use serde_json::{Value, json};

use crate::generate::rules;
use crate::generate::{self, Generated};
use crate::generate::{GenerateArgs, GenerateWhat};
use fenxi::exit::{Failure, print, remark};

/// Generates, then prints the summary: with `--json` on standard output, otherwise as text on
/// standard error.
///
/// # Errors
/// Generating failed, before the first packet or later; in the second case the summary is printed
/// first.
pub fn generate(args: &GenerateArgs) -> Result<(), Failure> {
    if let Some(GenerateWhat::Rules(args)) = &args.what {
        return rules::command::run(args);
    }
    let outcome = generate::run(args)?;
    let is_quiet = outcome.failure.as_ref().is_some_and(Failure::is_quiet);
    let printed = match args.json {
        true => print(&format!("{}\n", to_json(&outcome))),
        false if is_quiet => Ok(()),
        false => remark(&to_text(&outcome)),
    };
    let failures = [outcome.failure, printed.err()];
    failures.into_iter().flatten().reduce(Failure::and).map_or(Ok(()), Err)
}

fn packets_per_s(outcome: &Generated) -> f64 {
    outcome.packets as f64 / outcome.wall.as_secs_f64().max(1e-9)
}

/// The fields are documented in `docs/bench.md`.
fn to_json(outcome: &Generated) -> Value {
    let interface = outcome.interface.map(|counts: TxCounts| {
        json!({
            "sent": counts.sent,
            "sent_bytes": counts.sent_bytes,
            "dropped": counts.refused,
            "too_long": too_long(counts),
            "cut": counts.cut,
        })
    });
    let flows = outcome.flows.as_ref().map(|flows| {
        json!({
            "begun": flows.begun,
            "originals": flows.originals,
            "original_packets": flows.original_packets,
        })
    });
    json!({
        "flows": flows,
        "packets": outcome.packets,
        "bytes": outcome.bytes,
        "packet_time_s": outcome.packet_time_s,
        "wall_s": outcome.wall.as_secs_f64(),
        "packets_per_s": packets_per_s(outcome),
        "interface": interface,
        "interrupted": outcome.interrupted,
    })
}

/// Frames above the interface's MTU, packets merged from several among them.
fn too_long(counts: TxCounts) -> u64 {
    counts.too_long + counts.unsplit
}

fn to_text(outcome: &Generated) -> String {
    let mut page = String::new();
    if let Some(flows) = &outcome.flows {
        page += &format!(
            "flows    {} begun, copies of {} with {} packets\n",
            flows.begun, flows.originals, flows.original_packets
        );
    }
    page += &format!(
        "packets  {}, {} bytes, over {:.3} s of packet time\n\
         speed    {:.3} s, {:.3} Mpps\n",
        outcome.packets,
        outcome.bytes,
        outcome.packet_time_s,
        outcome.wall.as_secs_f64(),
        packets_per_s(outcome) / 1e6,
    );
    if let Some(counts) = outcome.interface {
        page += &format!(
            "sent     {}; dropped by the interface {}, too long {}, cut when captured {}\n",
            counts.sent,
            counts.refused,
            too_long(counts),
            counts.cut
        );
    }
    if outcome.interrupted {
        page += "fenxi-lab: interrupted; the above is what was done so far\n";
    }
    page
}
