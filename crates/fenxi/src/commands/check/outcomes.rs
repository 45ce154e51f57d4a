//! Labels of connections and sets of nftables: whether the kernel takes them from this process.

use config::Config;
use netfilter::writer::StartError;

use super::finding::Finding;
use crate::service_unit::set_capabilities;
use crate::sinks::{self, KernelPart};

pub fn look(config: &Config) -> Vec<Finding> {
    sinks::kernel_parts(config).map(finding).collect()
}

fn finding(part: KernelPart) -> Finding {
    let KernelPart { check, subject, probed, done } = part;
    let Err(error) = probed else {
        return Finding::ok(check, &subject, done);
    };
    let text = error.to_string();
    let found = Finding::problem(check, &subject, text.clone());
    match error {
        StartError::Capability { .. } => found.cure(set_capabilities(true)).for_permission(),
        StartError::Kernel { module, .. } => found.cure(format!("modprobe {module}")),
        // The command that adds a set stands at the end of the line.
        StartError::Unfit(_) => {
            found.cure_if(text.split_once("add it: ").map(|(_, cure)| cure.to_owned()))
        }
        StartError::Thread { .. } => found,
    }
}
