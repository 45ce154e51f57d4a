//! Whether each task was asked about the flow, by its `when`, and the answers of the other tasks.

use std::net::IpAddr;

use config::Config;
use config::when::{Direction, Term};
use dataplane::bundle::labels;
use dataplane::task_check::names;
use flowmgr::Inside;
use flowmgr::Standing;
use flowmgr::record::{DecidedBy, Decision};

use super::{Asked, Subject, answers, asked_again, why};
use crate::protocol::{Answer, AnswerOutcome, TaskPart};

pub struct AskedTask {
    pub asked: Asked,
    /// Name, version and generation of the model that answered, or else of the one in use.
    pub model: String,
    /// The flow as this task sees it.
    pub subject: Subject,
}

/// Why a task was not asked about a flow.
enum Obstacle {
    /// This term does not hold.
    Term(String),
    /// The label of this task is not there yet.
    WaitsFor(usize),
    /// One of these terms does not hold; it is not recorded which.
    OneOf(String),
}

/// The `when` of a task; empty if it is asked about every flow.
pub fn when(config: &Config, number: usize) -> String {
    let name = |task: usize| config.tasks[task].name.as_str();
    let task = config.tasks.get(number);
    task.map_or(String::new(), |task| task.when.named(name).to_string())
}

/// Why the task gave the flow its label or none, advice, and the answers.
pub fn part(tasks: &[AskedTask], config: &Config, number: usize) -> (String, String, Vec<Answer>) {
    let AskedTask { asked, subject, .. } = &tasks[number];
    let mut answers = answers(subject, &asked.bundle, asked);
    let (why, advice) = why::sentences(subject, asked, &config.of_task(number));
    if subject.own.decision.is_some() {
        return (why, advice, answers);
    }
    let why = match obstacle(tasks, config, number) {
        None => return (why, advice, answers),
        Some(Obstacle::WaitsFor(other)) => {
            let name = &config.tasks[other].name;
            return (format!("it waits for the label of {name}"), advice, answers);
        }
        Some(Obstacle::Term(term)) => format!("not asked about this flow: {term}"),
        Some(Obstacle::OneOf(terms)) => {
            format!("not asked about this flow: when = \"{terms}\" does not hold")
        }
    };
    for answer in &mut answers {
        answer.outcome = AnswerOutcome::NotAsked;
    }
    (why, String::new(), answers)
}

/// The tasks behind the first.
pub fn parts(tasks: &[AskedTask], config: &Config) -> Vec<TaskPart> {
    let others = tasks.iter().enumerate().skip(1);
    let of = |(number, task): (usize, &AskedTask)| {
        let (why, advice, answers) = part(tasks, config, number);
        TaskPart {
            task: config.tasks[number].name.clone(),
            when: when(config, number),
            label: task.subject.row.label.clone(),
            confidence: task.subject.row.confidence,
            why,
            advice,
            model: task.model.clone(),
            answers,
            asked_again: asked_again(&task.subject, &task.asked),
        }
    };
    others.map(of).collect()
}

/// Why a task without a label was not asked.
fn obstacle(tasks: &[AskedTask], config: &Config, number: usize) -> Option<Obstacle> {
    let when = &config.tasks.get(number)?.when;
    let shown = |term: &Term| term.named(|task| &config.tasks[task].name).to_string();
    let mut unknown: Vec<String> = Vec::new();
    for term in &when.terms {
        match holds(term, tasks, config) {
            Some(true) => {}
            Some(false) => {
                let said = term.task().map(|task| said(tasks, config, *task));
                let term = format!("{} does not hold{}", shown(term), said.unwrap_or_default());
                return Some(Obstacle::Term(term));
            }
            None => unknown.push(shown(term)),
        }
    }
    for &other in when.tasks() {
        let subject = &tasks[other].subject;
        if subject.own.decision.is_some() {
            continue;
        }
        if obstacle(tasks, config, other).is_some_and(|it| matches!(it, Obstacle::Term(_))) {
            let name = &config.tasks[other].name;
            let term = format!("{name}, whose label it needs, is not asked either");
            return Some(Obstacle::Term(term));
        }
        if let Some(Standing::Asked | Standing::Collecting { .. } | Standing::Unsure { .. }) =
            subject.own.standing
        {
            return Some(Obstacle::WaitsFor(other));
        }
    }
    let is_ruled_out = tasks[number].subject.own.standing == Some(Standing::NotAsked);
    (is_ruled_out && !unknown.is_empty()).then(|| Obstacle::OneOf(unknown.join(" and ")))
}

/// Whether a term holds for the flow; `None` if that is not known here, or not yet.
fn holds(term: &Term, tasks: &[AskedTask], config: &Config) -> Option<bool> {
    let flow = &tasks[0].subject.name;
    Some(match term {
        Term::Protocol(protocols) => protocols.iter().any(|it| it.number() == flow.protocol),
        Term::Port(ports) => {
            let port = flow.destination.1;
            ports.iter().any(|it| (it.first..=it.last).contains(&port))
        }
        Term::Direction(directions) => {
            let networks = config.host_networks.iter();
            let inside = Inside(networks.map(|it| (it.address(), it.bits())).collect());
            let is_in = |end: (IpAddr, u16)| inside.has(end.0);
            directions.contains(&Direction::from_ends(is_in(flow.source), is_in(flow.destination)))
        }
        Term::Label { task, labels: choice } => match decision(tasks, *task)? {
            None => choice.holds(false),
            Some(decision) => {
                let labels = labels(&tasks[*task].asked.bundle);
                let label = labels.get(usize::from(decision.class));
                choice.holds(label.is_some_and(|label| names(choice, &labels, label)))
            }
        },
        Term::Confidence { task, comparison, bound } => {
            let decision = decision(tasks, *task)?;
            let confidence = decision.map_or(0.0, |it| f32::from(it.confidence));
            comparison.holds(confidence / f32::from(u16::MAX), *bound)
        }
        Term::InPort(_) | Term::Vlan(_) | Term::Rule(_) | Term::Sample(_) => return None,
    })
}

/// The label that another task's model gave; `None` while it may still come.
fn decision(tasks: &[AskedTask], task: usize) -> Option<Option<Decision>> {
    let subject = &tasks[task].subject;
    match (subject.own.decision, subject.own.standing) {
        // The label is not the model's: a rule gave it, or the port at the flow's end.
        (Some(it), _) if it.decided_by == DecidedBy::Rule => None,
        (Some(it), _) if it.decided_by == DecidedBy::Port && !it.is_ports_first() => None,
        (Some(decision), _) => Some(Some(decision)),
        (None, Some(Standing::Lost)) => Some(None),
        (None, _) => None,
    }
}

/// The label of another task, as the reason behind a term.
fn said(tasks: &[AskedTask], config: &Config, task: usize) -> String {
    let (row, name) = (&tasks[task].subject.row, &config.tasks[task].name);
    match (&row.label, row.confidence) {
        (Some(label), Some(confidence)) => format!(", because {name} said {label} {confidence:.4}"),
        _ => format!(", because {name} gave no label"),
    }
}
