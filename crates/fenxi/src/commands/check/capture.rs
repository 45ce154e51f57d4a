//! Which packets come up from the kernel: whether it takes the program that sends up the first ones of each flow.

use accel::Bundle;
use config::Config;

use super::capabilities::drop_in;
use super::finding::Finding;
use crate::run::ports;

const CHECK: &str = "capture";
/// What the program needs.
const NEEDED: &str = "CAP_BPF and CAP_NET_ADMIN";

/// Tries the program on each interface: it is attached and detached again, and changes nothing.
pub fn look(config: &Config, bundle: &Bundle) -> Vec<Finding> {
    let Some(first) = ports::first_packets(config, bundle) else {
        return Vec::new();
    };
    let of = |interface: &String| match ports::try_first(&config.io, first, interface) {
        Ok(()) => Finding::ok(
            CHECK,
            interface,
            "the first packets of each flow come up, and the kernel counts the others",
        ),
        Err(error) => {
            let why = error.to_string();
            let lacks_rights = why.contains(NEEDED);
            let cause = format!("{why}; all packets will come up, which costs more");
            let lines = [
                "AmbientCapabilities=CAP_BPF CAP_NET_ADMIN",
                "CapabilityBoundingSet=CAP_BPF CAP_NET_ADMIN",
                "SystemCallFilter=bpf",
            ];
            let cure = lacks_rights.then(|| drop_in("first", &lines));
            Finding::warning(CHECK, interface, cause).cure_if(cure)
        }
    };
    config.io.interfaces.iter().map(of).collect()
}
