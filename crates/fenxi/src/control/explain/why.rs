//! The reason in a sentence, and what to do about it.

use accel::Bundle;
use config::Config;
use cring::Context;
use dataplane::bundle::{local_context, thresholds};
use flowmgr::Standing;
use flowmgr::record::{DecidedBy, Decision, EndReason};

use super::{Asked, Subject, class_name, port_first};
use crate::figures::{counted, scaled};
use crate::scores;

/// Why the flow has its label or none, and what the user can do; the latter may be empty. `config`
/// is the task's.
pub fn sentences(subject: &Subject, asked: &Asked, config: &Config) -> (String, String) {
    let bundle = &asked.bundle;
    if subject.name.is_icmp() {
        return ("no model is asked about ICMP".to_owned(), String::new());
    }
    match (subject.own.decision, subject.own.standing) {
        (Some(decision), _) => labelled(subject, decision, asked, config),
        (None, Some(standing)) => waiting(subject, standing, bundle),
        (None, None) => ended(subject, bundle),
    }
}

fn labelled(
    subject: &Subject,
    decision: Decision,
    asked: &Asked,
    config: &Config,
) -> (String, String) {
    let bundle = &asked.bundle;
    let confidence = f64::from(decision.confidence) / f64::from(u16::MAX);
    let depth = bundle.depths().iter().find(|depth| depth.elements == usize::from(decision.depth));
    let sure_from = depth.map_or(0.0, |depth| f64::from(depth.confidence));
    let is_unknown = usize::from(decision.class) >= bundle.labels().len();
    // To the precision of label words.
    let is_sure = decision.contradicts.is_some() || !is_unknown && confidence + 1e-4 >= sure_from;
    let elements = match decision.depth {
        1 => format!("the first {}", noun(bundle).replacen("packets", "packet", 1)),
        depth => format!("{depth} {}", noun(bundle)),
    };
    let took = match decision.time_to_label_us.filter(|us| *us > 0) {
        Some(us) => format!("; the label came {:.2} ms later", us as f64 / 1e3),
        None => String::new(),
    };
    let by_port = port_first(subject, bundle);
    let why = match decision.decided_by {
        DecidedBy::Port if by_port.is_some() => {
            return (
                format!(
                    "by port {} ({}), with the flow's first packet: no answer of the model has \
                     contradicted it; the confidence is how often that port was right in training",
                    subject.name.destination.1, subject.row.transport
                ),
                String::new(),
            );
        }
        DecidedBy::Port => {
            return (
                format!(
                    "no answer of the model was sure when the flow ended, so the port of its \
                     server decided ({} {}); the \
                     confidence is how often that port was right in training",
                    subject.row.transport, subject.name.destination.1
                ),
                String::new(),
            );
        }
        DecidedBy::Rule => {
            return (
                format!("{} gives the flow this label, so no model was asked", rule(subject)),
                String::new(),
            );
        }
        _ if is_unknown => {
            let guess = unknown(decision, confidence, asked, config);
            format!("after {elements}, {guess}{took}")
        }
        DecidedBy::Cache => format!(
            "an earlier flow began with the same {elements}, and the prefix cache remembered the \
             model's answer{took}"
        ),
        DecidedBy::Model if is_sure => {
            format!("the model was sure after {elements}{took}")
        }
        DecidedBy::Model => {
            format!("no answer was sure; the last one, after {elements}, stands{took}")
        }
    };
    let why = match by_port.filter(|_| decision.contradicts.is_some()) {
        Some(port) => format!(
            "by port {} it was {} until the model contradicted that: {why}",
            port.port,
            class_name(bundle, port.label as u16)
        ),
        None => why,
    };
    let band = bundle.target().and_then(|it| scores::band(it, usize::from(decision.class)));
    let why = match band {
        Some(band) => format!("{}, {band}: {why}", class_name(bundle, decision.class)),
        None => why,
    };
    let why = match server(subject, bundle) {
        Some(server) => format!("{why}; {server}"),
        None => why,
    };
    let advice = match (is_unknown, is_sure) {
        (true, _) => {
            "`fenxi model bench` says how good the model is on your traffic; docs/train.md how to \
             train your own"
        }
        (false, false) => "rules that must not err should ask for a confidence",
        (false, true) => "",
    };
    (why, advice.to_owned())
}

/// What the memory of servers said when the flow began, if the model reads it.
fn server(subject: &Subject, bundle: &Bundle) -> Option<String> {
    local_context(bundle)?;
    let series = subject.own.series.as_ref()?;
    series.local()?;
    let [log2, flows] = [Context::ServerVolume, Context::ServerFlows].map(|it| it.value(series));
    if flows == 0.0 {
        return Some("no earlier flow to this server was remembered".to_owned());
    }
    // The memory's logarithm is straight between powers of two.
    let bytes = (1.0 + f64::from(log2.fract())) * f64::from(log2.floor()).exp2() - 1.0;
    let (bytes, flows) = (scaled(bytes), counted(flows as u64, "flow"));
    Some(format!("this server's flows weighed {bytes}B on average ({flows})"))
}

/// Why the model's answer is "unknown". The data path keeps its confidence; what the guess was, the
/// model says again.
fn unknown(decision: Decision, confidence: f64, asked: &Asked, config: &Config) -> String {
    let bundle = &asked.bundle;
    let mut depths = bundle.depths().iter();
    let at = depths.position(|depth| depth.elements == usize::from(decision.depth));
    let rows = asked.probabilities.as_deref().unwrap_or_default();
    let best = at.and_then(|at| rows.get(at)).map(|row| {
        let ranked = row.iter().enumerate();
        ranked.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |it| it.0)
    });
    let label = best.filter(|best| *best < bundle.labels().len());
    let least = match (thresholds(config, bundle), label) {
        (Ok(thresholds), Some(class)) => thresholds.get(class),
        _ => config.model.min_confidence.unwrap_or(bundle.min_confidence()),
    };
    let is_too_unsure = confidence < f64::from(least);
    match (label, best) {
        (Some(class), _) if is_too_unsure => format!(
            "best guess {} {confidence:.2}, below {least}: too unsure",
            class_name(bundle, class as u16)
        ),
        (None, None) if is_too_unsure => {
            format!("the best guess had {confidence:.2}, below {least}: too unsure")
        }
        _ => format!("the model takes it for none of its labels: unknown {confidence:.2}"),
    }
}

fn waiting(subject: &Subject, standing: Standing, bundle: &Bundle) -> (String, String) {
    let unit = noun(bundle);
    let first = bundle.depths().first().map_or(bundle.k(), |depth| depth.elements);
    let (why, advice) = match standing {
        Standing::Collecting { elements } => {
            (format!("{elements} of the {first} {unit} that the model needs first have come"), "")
        }
        Standing::Withheld => (
            "the flow began mid-stream: its SYN was not seen, so the model, which was not trained \
             for that, was not asked"
                .to_owned(),
            "flows that begin while fenxi runs get a label; if new ones are mid-stream too, fenxi \
             does not see their first packets",
        ),
        Standing::Unasked => {
            (format!("{} says that no model is asked about this flow", rule(subject)), "")
        }
        Standing::NotAsked => ("the task is not asked about this flow".to_owned(), ""),
        Standing::Asked => {
            ("the series is on its way to the model".to_owned(), "ask again in a moment")
        }
        Standing::Unsure { elements } => {
            let mut deeper = bundle.depths().iter().map(|depth| depth.elements);
            match deeper.find(|depth| *depth > usize::from(elements)) {
                Some(next) => (
                    format!(
                        "no answer was sure so far; the next one needs {next} {unit}, and \
                        {elements} have come"
                    ),
                    "a flow that ends before is named by its best answer, or by its port",
                ),
                None => ("no answer was sure so far, and another one is awaited".to_owned(), ""),
            }
        }
        Standing::Lost => (
            "the series was shed, or its inference failed: there was no room in the ring, or no \
             device"
                .to_owned(),
            "`fenxi ctl devices` shows the devices, `fenxi ctl status` how many series were lost",
        ),
        Standing::Labelled(_) => (String::new(), ""),
    };
    (why, advice.to_owned())
}

fn ended(subject: &Subject, bundle: &Bundle) -> (String, String) {
    let unit = noun(bundle);
    let first = bundle.depths().first().map_or(bundle.k(), |depth| depth.elements);
    let seen = subject.own.series.as_ref().map(|series| series.k());
    let mut why = match (subject.midstream && !bundle.midstream(), seen) {
        (true, _) => {
            "the flow began mid-stream: its SYN was not seen, so the model, which was not \
            trained for that, was not asked"
                .to_owned()
        }
        (false, Some(seen)) if seen < first => {
            format!("the flow ended after {seen} {unit}, and the model needs {first}")
        }
        (false, Some(_)) => "the series was shed, its inference failed, or the label came after \
            the flow's end"
            .to_owned(),
        (false, None) => format!(
            "the flow ended without a label: it had fewer than {first} {unit}, its series was \
             shed, or the label came after its end"
        ),
    };
    if !bundle.ports().is_empty() && !subject.midstream {
        why += &format!(
            "; port {} is not in the model's table of ports, or nothing was said on it",
            subject.name.destination.1
        );
    }
    let advice = match subject.ended {
        Some(EndReason::Evicted) => {
            "the flow made room for another one in a full table; raise flow.max_flows"
        }
        _ if subject.one_way => {
            "only one side was seen; if that is so for most flows, fenxi sees one direction only"
        }
        _ => "",
    };
    (why, advice.to_owned())
}

fn rule(subject: &Subject) -> String {
    match subject.rule {
        Some(number) => format!("rule {number}"),
        None => "a rule".to_owned(),
    }
}

/// What an element is, in the plural.
fn noun(bundle: &Bundle) -> &'static str {
    match bundle.unit() {
        "data" => "packets with payload",
        _ => "packets",
    }
}
