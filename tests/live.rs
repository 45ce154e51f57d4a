//! What a live run writes: records and the log, in network namespaces with veth pairs that each
//! test makes and removes. Skipped by name without root or the programs.

use crate::common;

mod fence;
mod log;
mod profiles;
mod records;
mod sockets;

use common::lab::Lab;
use common::live::generate_on;

/// Watches one end of a wire; flows end soon, and there is no model.
const WATCH: [&str; 10] = [
    "--set",
    "io.interfaces=[\"b\"]",
    "--set",
    "flow.idle_timeout_s=1",
    "--set",
    "flow.closed_timeout_s=1",
    "--set",
    "analytics.timeout_ms=1",
    common::SIMULATED[0],
    common::SIMULATED[1],
];

/// Sends a mix of flows over the wire that [`WATCH`] watches.
fn generate(lab: &Lab, flows_per_s: u32, flows: u32) {
    let mut command = generate_on(lab, "host");
    command.args(["--interface", "a", "--json"]);
    command.args(["--flows-per-s", &flows_per_s.to_string()]);
    command.args(["--flows", &flows.to_string()]);
    // The capture's times between a flow's packets do not count, so it is over soon.
    command.args(["--pps", "20000"]);
    common::run(command).expect_code(0);
}
