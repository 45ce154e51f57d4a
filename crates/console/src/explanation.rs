//! An explanation as text.

use crate::protocol::{Answer, AnswerOutcome, Element, Explanation, TaskPart};

use crate::figures::{duration, grouped};
use crate::text::{escape, left, right};

const CLASSES: usize = 3;

/// The explanation in a screen of text.
pub fn text(it: &Explanation) -> String {
    let mut lines = Vec::new();
    let flow = &it.flow;
    lines.push(format!("flow {}  {} {} > {}", flow.flow_id, flow.transport, flow.src, flow.dst));
    let state = match &flow.end_reason {
        Some(reason) => format!("ended: {reason}, after {}", duration(flow.age_s)),
        None => format!(
            "in the flow table, {} old, silent for {}",
            duration(flow.age_s),
            duration(flow.idle_s)
        ),
    };
    lines.push(field("state", &state));
    lines.push(field(
        "traffic",
        &format!(
            "{} packets, {} bytes; first {}, last {}",
            grouped(flow.packets),
            grouped(flow.bytes),
            it.first,
            it.last
        ),
    ));
    let set = flow.dscp_set.as_ref().map_or(String::new(), |set| format!(", {set} set"));
    lines.push(field("dscp", &format!("{} seen{set}", flow.dscp_seen)));
    if let Some(measured) = &flow.measured {
        lines.push(field("measured", &measured.text()));
    }
    if let Some(host) = &flow.host {
        lines.push(field("host", host));
    }
    for (end, known) in [("client", &it.client), ("server", &it.server)] {
        lines.extend(known.as_ref().map(|known| field(end, &known.text())));
    }
    if let Some(task) = &it.task {
        lines.push(String::new());
        lines.push(field("task", &with_when(task, &it.when)));
    }
    let label = label(flow.label.as_ref(), flow.confidence);
    let since = it.labelled.as_ref().map_or(String::new(), |at| format!(", at {at}"));
    lines.push(field("label", &(label + &since)));
    if let Some(place) = &it.place {
        lines.push(field("where", place));
    }
    lines.extend(why(&it.why, &it.advice));
    if let Some(rule) = &it.rule {
        lines.push(field("rule", rule));
    }
    for (at, closed) in it.closed_rules.iter().enumerate() {
        let name = if it.rule.is_none() && at == 0 { "rule" } else { "" };
        lines.push(field(name, &format!("not {closed}")));
    }
    lines.push(field("model", &it.model));
    lines.push(String::new());
    lines.extend(series(it));
    lines.push(String::new());
    lines.extend(answers(&it.answers, &it.asked_again));
    for task in &it.tasks {
        lines.push(String::new());
        lines.extend(of_task(task));
    }
    lines.push(String::new());
    lines.push("written".to_owned());
    for written in &it.written {
        let value =
            if written.value.is_empty() { String::new() } else { format!(" {}", written.value) };
        let at = written.at.as_ref().map_or(String::new(), |at| format!(" at {at}"));
        lines.push(format!("  {}{value}: {}{at}", written.what, written.outcome));
    }
    if it.others > 0 {
        lines.push(String::new());
        lines.push(format!(
            "{} other flows fit as well, of which this is the newest; name one by its number",
            it.others
        ));
    }
    let mut text = String::new();
    for line in lines {
        text += escape(line.trim_end()).as_ref();
        text.push('\n');
    }
    text
}

/// What another task than the first says.
fn of_task(task: &TaskPart) -> Vec<String> {
    let mut lines = vec![
        field("task", &with_when(&task.task, &task.when)),
        field("label", &label(task.label.as_ref(), task.confidence)),
    ];
    lines.extend(why(&task.why, &task.advice));
    lines.push(field("model", &task.model));
    lines.extend(answers(&task.answers, &task.asked_again));
    lines
}

fn why(why: &str, advice: &str) -> impl Iterator<Item = String> {
    let advice = (!advice.is_empty()).then(|| field("", advice));
    std::iter::once(field("why", why)).chain(advice)
}

fn with_when(task: &str, when: &str) -> String {
    if when.is_empty() { task.to_owned() } else { format!("{task}, when {when}") }
}

fn label(label: Option<&String>, confidence: Option<f64>) -> String {
    match (label, confidence) {
        (Some(label), Some(confidence)) => format!("{label}, confidence {confidence:.4}"),
        (Some(label), None) => label.clone(),
        (None, _) => "none".to_owned(),
    }
}

fn field(name: &str, text: &str) -> String {
    format!("{} {text}", left(name, 8))
}

fn series(it: &Explanation) -> Vec<String> {
    let series = &it.series;
    let unit = match series.unit.as_str() {
        "data" => "packets with payload",
        _ => "packets",
    };
    let mut lines = vec![format!(
        "series   {} of at most {} {unit}; the model wants {}",
        series.elements.len(),
        series.k,
        series.features.join(", ")
    )];
    if series.server_port > 0 {
        lines[0] += &format!("; server port {}", series.server_port);
    }
    if series.elements.is_empty() {
        lines.push(format!("  {}", series.why_none));
        return lines;
    }
    type Cell = (&'static str, fn(&Element) -> Option<String>);
    let cells: [Cell; 4] = [
        ("bytes", |it| it.length.map(|length| length.to_string())),
        ("payload", |it| it.payload.map(|payload| payload.to_string())),
        ("after µs", |it| it.inter_arrival_us.map(|us| grouped(us.into()))),
        ("flags", |it| it.tcp_flags.clone()),
    ];
    let present = |cell: &&Cell| series.elements.iter().any(|element| cell.1(element).is_some());
    let present: Vec<&Cell> = cells.iter().filter(present).collect();
    let mut heading = format!("  {} {}", right("#", 3), left("way", 8));
    for (name, _) in &present {
        heading += &format!(" {}", right(name, 11));
    }
    lines.push(heading);
    for (at, element) in series.elements.iter().enumerate() {
        let way = if element.is_reverse { "reverse" } else { "forward" };
        let mut line = format!("  {} {}", right(&(at + 1).to_string(), 3), left(way, 8));
        for (_, of) in &present {
            line += &format!(" {}", right(&of(element).unwrap_or_default(), 11));
        }
        lines.push(line);
    }
    lines
}

fn answers(answers: &[Answer], asked_again: &str) -> Vec<String> {
    let mut lines = vec!["answers".to_owned()];
    lines.extend(answers.iter().map(answer));
    if !asked_again.is_empty() {
        lines.push(format!("  {asked_again}"));
    }
    lines
}

fn answer(answer: &Answer) -> String {
    let what = match answer.outcome {
        AnswerOutcome::Decided => "decided",
        AnswerOutcome::NotSure => "not sure",
        AnswerOutcome::Agrees => "agrees with the port",
        AnswerOutcome::NotNeeded => "not needed",
        AnswerOutcome::Waiting => "on its way",
        AnswerOutcome::Lost => "lost: the series was shed, or the device failed",
        AnswerOutcome::TooShort => "the flow is too short",
        AnswerOutcome::NotAsked => "not asked",
        AnswerOutcome::NotKept => "not kept",
    };
    let mut line = format!("  depth {}  {}", right(&answer.depth.to_string(), 2), what);
    if let (Some(label), Some(confidence)) = (&answer.label, answer.confidence) {
        let by = answer.by.as_deref().unwrap_or("model");
        line += &format!(": {label} {confidence:.4} by the {by}");
    }
    if matches!(answer.outcome, AnswerOutcome::Decided | AnswerOutcome::NotSure) {
        line += &format!(", sure from {:.2} on", answer.sure_from);
    }
    if !answer.probabilities.is_empty() {
        let classes: Vec<String> = answer
            .probabilities
            .iter()
            .take(CLASSES)
            .map(|it| format!("{} {:.4}", it.label, it.probability))
            .collect();
        line += &format!("  [{}]", classes.join(", "));
    }
    line
}
