//! Labels of connections and sets of nftables: whether the kernel takes them from this process.

use config::Config;
use netfilter::writer::StartError;

use super::finding::Finding;
use crate::service_unit::set_capabilities;
use crate::sinks::{connlabel, nft_set};

const CONNLABEL: &str = "connlabel";
const NFTSET: &str = "nftset";

/// Checks what the configuration asks for.
pub fn look(config: &Config) -> Vec<Finding> {
    let labels = (!config.connlabel.class.is_empty()).then(|| {
        let done = "the kernel accepts labels of connections from this process";
        finding(CONNLABEL, "ctnetlink", connlabel::probe(), done.to_owned())
    });
    let sets = config.nft_sets.iter().map(|set| {
        let name = set.set.as_ref().map_or(String::new(), ToString::to_string);
        finding(
            NFTSET,
            &set.name,
            nft_set::probe(set),
            format!("{name} takes elements"),
        )
    });
    labels.into_iter().chain(sets).collect()
}

fn finding(
    check: &'static str,
    subject: &str,
    probed: Result<(), StartError>,
    done: String,
) -> Finding {
    let Err(error) = probed else {
        return Finding::ok(check, subject, done);
    };
    let text = error.to_string();
    let found = Finding::problem(check, subject, text.clone());
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
