//! Why a flow has its label, or none: `fenxi ctl explain` and `fenxi replay --explain`.
//!
//! [`subject`] gathers what flow tables and records know of the flow; [`mod@ask`] asks the model
//! again; [`mod@why`] puts it into sentences.

mod ask;
mod explainer;
mod replayed;
mod subject;
mod tasks;
mod why;

use accel::Bundle;
use config::Config;
use cring::{Feature, Label, Series};
use flowmgr::Wanted;
use flowmgr::record::{DecidedBy, Decision};

use crate::protocol::{
    Answer, AnswerOutcome, Element, Explanation, FlowQuery, Probability, SeriesPart, Written,
};
use crate::sinks::rfc3339;

pub use ask::{Asked, ask};
pub use explainer::{Explainer, find, nowhere};
pub use replayed::{after_a_replay, of_records};
pub use subject::Subject;
pub use tasks::AskedTask;

/// Maximum probabilities of an answer.
const CLASSES: usize = 5;

pub fn wanted(query: &FlowQuery) -> Wanted {
    match *query {
        FlowQuery::Id(id) => Wanted::Id(id),
        FlowQuery::Ends { protocol, a, b } => Wanted::Ends { protocol, ends: [a, b] },
    }
}

/// Explains the flow. The tasks are in the order of the configuration, at least one.
pub fn explanation(
    tasks: Vec<AskedTask>,
    config: &Config,
    written: Vec<Written>,
    others: usize,
    rule: Option<String>,
) -> Option<Explanation> {
    let (why, advice, answers) = tasks::part(&tasks, config, 0);
    let parts = tasks::parts(&tasks, config);
    let has_several = config.tasks.len() > 1;
    let when = tasks::when(config, 0);
    let AskedTask { asked, model, subject } = tasks.into_iter().next()?;
    let bundle = &asked.bundle;
    Some(Explanation {
        first: rfc3339(subject.times_us[0]),
        last: rfc3339(subject.times_us[1]),
        labelled: subject.labelled_us.map(rfc3339),
        midstream: subject.midstream,
        one_way: subject.one_way,
        place: None,
        why,
        advice,
        rule,
        closed_rules: Vec::new(),
        series: series(&subject, bundle),
        asked_again: asked_again(&subject, &asked),
        answers,
        model,
        written,
        others,
        task: has_several.then(|| config.tasks[0].name.clone()),
        when,
        tasks: parts,
        flow: subject.row,
        client: None,
        server: None,
    })
}

fn series(subject: &Subject, bundle: &Bundle) -> SeriesPart {
    let elements = subject.own.series.as_ref().map_or_else(Vec::new, elements);
    let why_none = match (&subject.own.series, elements.is_empty()) {
        (None, _) => {
            "the flow has ended, and its series with it; with records.series = 1 (run) or --series \
            (replay) records keep it"
        }
        (Some(_), true) => "no element has come yet",
        _ => "",
    };
    SeriesPart {
        unit: bundle.unit().to_owned(),
        features: bundle.features().to_vec(),
        k: bundle.k(),
        server_port: subject.own.series.as_ref().map_or(0, |series| series.server_port),
        elements,
        why_none: why_none.to_owned(),
    }
}

fn elements(series: &Series) -> Vec<Element> {
    let numbers = |feature| series.channel(feature);
    let times: Vec<u32> = series.inter_arrivals_us().collect();
    let element = |at: usize| Element {
        is_reverse: series.directions >> at & 1 == 1,
        length: numbers(Feature::SignedLength).get(at).map(|&it| it.into()),
        payload: numbers(Feature::PayloadLength).get(at).map(|&it| it.into()),
        inter_arrival_us: times.get(at).copied(),
        tcp_flags: numbers(Feature::TcpFlags).get(at).map(|&flags| flag_names(flags)),
    };
    (0..series.k()).map(element).collect()
}

/// TCP flags by name (RFC 9293 section 3.1, RFC 3168).
fn flag_names(flags: u16) -> String {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let set = (0..NAMES.len()).filter(|bit| flags >> bit & 1 == 1);
    let names: Vec<&str> = set.map(|bit| NAMES[bit]).collect();
    names.join(" ")
}

fn answers(subject: &Subject, bundle: &Bundle, asked: &Asked) -> Vec<Answer> {
    let seen = subject.own.series.as_ref().map_or(0, |series| series.k());
    let decided = decided_at(subject, bundle);
    let by_port = port_first(subject, bundle).map(|port| port.label as u16);
    let depths = bundle.depths().iter().enumerate();
    let answer = |(at, depth): (usize, &accel::Depth)| {
        let word = subject.own.answers.as_ref().and_then(|answers| answers.get(at)).copied();
        // Once a deeper one has decided, the first label word holds its answer.
        let is_own =
            at != 0 || bundle.is_ports_first() || decided.is_none_or(|decided| decided == 0);
        let own = word.filter(|_| is_own);
        let sure_from = match by_port {
            Some(_) => depth.contradiction.unwrap_or(depth.confidence),
            None => depth.confidence,
        };
        // An answer could not contradict the port.
        let is_never_asked = depth.contradiction.is_none_or(|least| least >= 1.0);
        let (label, confidence, by) = match own {
            Some(Label::Class { class, confidence, source, .. }) => (
                Some(class_name(bundle, class)),
                Some(f64::from(confidence) / f64::from(u16::MAX)),
                Some(DecidedBy::from(source).name().to_owned()),
            ),
            _ if decided == Some(at) => {
                (subject.row.label.clone(), subject.row.confidence, subject.row.decided_by.clone())
            }
            _ => (None, None, None),
        };
        Answer {
            depth: depth.elements,
            outcome: match by_port {
                Some(port) if own_class(own) == Some(port) => AnswerOutcome::Agrees,
                Some(_) if is_never_asked && own == Some(Label::Unlabelled) => {
                    AnswerOutcome::NotAsked
                }
                _ => outcome(word, at, depth.elements, decided, seen),
            },
            label,
            confidence,
            by,
            sure_from: f64::from(sure_from),
            probabilities: probabilities(asked, bundle, at),
        }
    };
    depths.map(answer).collect()
}

fn own_class(own: Option<Label>) -> Option<u16> {
    match own {
        Some(Label::Class { class, .. }) => Some(class),
        _ => None,
    }
}

/// The port's label, if it named the flow with its first packet.
fn port_first<'a>(subject: &Subject, bundle: &'a Bundle) -> Option<&'a accel::PortLabel> {
    let decision = subject.own.decision.filter(|it| it.is_ports_first());
    decision.and_then(|_| bundle.port(subject.name.protocol, subject.name.destination.1))
}

/// Index of the depth whose answer is the flow's label.
fn decided_at(subject: &Subject, bundle: &Bundle) -> Option<usize> {
    subject.own.decided.or_else(|| {
        let by_model = |it: &Decision| !matches!(it.decided_by, DecidedBy::Port | DecidedBy::Rule);
        let decision = subject.own.decision.filter(by_model)?;
        let mut depths = bundle.depths().iter();
        depths.position(|depth| depth.elements == usize::from(decision.depth))
    })
}

fn outcome(
    word: Option<Label>,
    at: usize,
    elements: usize,
    decided: Option<usize>,
    seen: usize,
) -> AnswerOutcome {
    if decided == Some(at) {
        return AnswerOutcome::Decided;
    }
    let is_past = decided.is_some_and(|decided| at > decided);
    match word {
        _ if decided.is_some_and(|decided| at < decided) => AnswerOutcome::NotSure,
        Some(Label::Class { .. }) if is_past => AnswerOutcome::NotNeeded,
        Some(Label::Class { .. }) => AnswerOutcome::NotSure,
        Some(Label::Pending) => AnswerOutcome::Waiting,
        Some(Label::Unlabelled) => AnswerOutcome::Lost,
        _ if is_past => AnswerOutcome::NotNeeded,
        Some(Label::None) if seen < elements => AnswerOutcome::TooShort,
        Some(Label::None) => AnswerOutcome::NotAsked,
        None if seen > 0 && seen < elements => AnswerOutcome::TooShort,
        None => AnswerOutcome::NotKept,
    }
}

fn probabilities(asked: &Asked, bundle: &Bundle, at: usize) -> Vec<Probability> {
    let row = asked.probabilities.as_ref().ok().and_then(|all| all.get(at));
    let mut ranked: Vec<(usize, f32)> = row.into_iter().flatten().copied().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let probability = |(class, probability)| Probability {
        label: class_name(bundle, class as u16),
        probability: f64::from(probability),
    };
    ranked.into_iter().take(CLASSES).map(probability).collect()
}

fn class_name(bundle: &Bundle, class: u16) -> String {
    let label = bundle.labels().get(usize::from(class));
    label.map_or(dataplane::bundle::UNKNOWN, |label| &label.name).to_owned()
}

fn asked_again(subject: &Subject, asked: &Asked) -> String {
    match (&asked.probabilities, &subject.own.series) {
        (_, None) => "no probabilities: there is no series to ask the model about".to_owned(),
        (Err(why), _) => format!("no probabilities: {why}"),
        (Ok(rows), _) if rows.is_empty() => {
            "no probabilities: the series is shorter than the first depth".to_owned()
        }
        (Ok(_), _) => format!("[probabilities]: recomputed now, on {}", asked.device),
    }
}
