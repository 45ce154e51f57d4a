//! What another bundle must have in common with the one in use: a label travels to a flow as a
//! number, and which series flow managers collect is fixed when they start.

use std::path::Path;

use accel::{Bundle, Confusion, Depth, LabelInfo, PortLabel, Target};

use crate::Error;

/// Whether the bundle in `dir` means the same as the one in use.
///
/// # Errors
/// The first thing that has another meaning.
pub fn check(dir: &Path, found: &Bundle, in_use: &Bundle) -> Result<(), Error> {
    compare(dir, &meaning(found), &meaning(in_use))
}

type Meaning = [(&'static str, String)];

fn compare(dir: &Path, found: &Meaning, in_use: &Meaning) -> Result<(), Error> {
    let mut both = found.iter().zip(in_use);
    match both.find(|(found, in_use)| found != in_use) {
        None => Ok(()),
        Some(((what, found), (_, in_use))) => Err(Error::data(format!(
            "{}: {what} {found}, but {in_use} in the model in use; restart to use this model",
            dir.display()
        ))),
    }
}

fn meaning(bundle: &Bundle) -> [(&'static str, String); 9] {
    let series = format!("{}, k = {}", bundle.unit(), bundle.k());
    [
        ("the features are", bundle.features().join(", ")),
        ("the unit and k are", series),
        ("the depths are", listed(bundle.depths(), depth)),
        ("the numbers of context are", bundle.context().join(", ")),
        ("the ports are", listed(bundle.ports(), port)),
        ("the hosts are", hosts(bundle)),
        ("the labels are", listed(bundle.labels(), label)),
        ("the labels are bands of", bundle.target().map_or("nothing".to_owned(), target)),
        // A model that is asked about other flows than it was trained for is worse than none.
        ("midstream is", bundle.midstream().to_string()),
    ]
}

fn listed<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// A label with its taxonomy, because marks may have been given by taxonomy.
fn label(label: &LabelInfo) -> String {
    format!("{} ({})", label.name, label.taxonomy)
}

fn depth(depth: &Depth) -> String {
    let sure = format!("{} (sure from {})", depth.elements, depth.confidence);
    match depth.contradiction {
        Some(least) => format!("{sure} (contradicts ports from {least})"),
        None => sure,
    }
}

fn port(it: &PortLabel) -> String {
    format!("{}/{} {} {}", it.protocol, it.port, it.label, it.precision)
}

fn target(target: &Target) -> String {
    let Target { of, edges } = target;
    format!("{of}, with edges at {}", listed(edges, u64::to_string))
}

fn hosts(bundle: &Bundle) -> String {
    let Some(hosts) = bundle.hosts() else {
        return "not named".to_owned();
    };
    let (flows, min_flows, confidence) = (hosts.flows, hosts.min_flows, hosts.confidence);
    let text = |it: &Confusion| format!(", {} for {} {}", it.named, it.label, it.share);
    let confusions: String = hosts.confusions.iter().map(text).collect();
    format!("named by {min_flows} to {flows} flows from {confidence}{confusions}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_must_mean_what_they_meant() {
        let [found, in_use] =
            ["a, b", "b, a"].map(|labels| [("the labels are", labels.to_owned())]);
        let refused = compare(Path::new("d"), &found, &in_use).unwrap_err();
        assert!(refused.to_string().starts_with("d: the labels are a, b"));
        assert!(compare(Path::new("d"), &found, &found).is_ok());
    }
}
