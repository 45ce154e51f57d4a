//! `task.when`: which flows a task is asked about.
//!
//! The text is a conjunction, such as
//! `protocol = tcp and port = 443, 8000-8100 and app.confidence < 0.9`. All its terms have to hold;
//! a list means any of its values; no term means every flow.
//!
//! * `vlan` is for services ([`Term::Vlan`]), and tasks refuse it.
//! * Terms on the flow alone are decided with its first packet: `protocol`, `port` (of the server),
//!   `in_port`, `direction`, `sample`, and `rule`, the name of the flow's rule of `policy.rules`,
//!   as it stands then.
//! * A task that names other tasks is asked once these have given their labels. If another task was
//!   asked and gave none (its series was shed, or the device failed), its confidence is 0 and its
//!   label equals nothing. If it was not asked, because its own `when` did not hold, this one is
//!   not asked either.
//! * `sample` chooses by a hash of the flow's tuple, so that a smaller share of one task lies
//!   within the larger of another.
//!
//! [`parse`](When::parse) and `Display` are inverse to each other. Other tasks have their names
//! ([`When<String>`]) until the check puts their numbers there.

use std::fmt;
use std::ops::RangeInclusive;

use policy::Ports;

use crate::words::words;

pub(crate) mod never;
mod parse;
#[cfg(test)]
mod tests;

pub use never::Needed;
pub use parse::WhenError;

/// The most characters of a term or a value that a message shows.
const SHOWN: usize = 80;

/// Which flows a task is asked about: those for which all terms hold. `T` stands for another task:
/// its number in [`Config::tasks`](crate::Config::tasks), or its name as the user writes it.
#[derive(Debug, Clone, PartialEq)]
pub struct When<T = usize> {
    /// The terms in the order of the text; empty: every flow.
    pub terms: Vec<Term<T>>,
}

impl<T> Default for When<T> {
    fn default() -> When<T> {
        When { terms: Vec::new() }
    }
}

/// One condition. A list holds where any of its values does.
#[derive(Debug, Clone, PartialEq)]
pub enum Term<T = usize> {
    /// The protocol is one of these.
    Protocol(Vec<Protocol>),
    /// The server's port is in one of these ranges.
    Port(Vec<Ports>),
    /// The flow's first packet came in by one of these interfaces.
    InPort(Vec<String>),
    /// The outermost tag of the flow's first frame has one of these VLANs.
    Vlan(Vec<u16>),
    /// By where the flow's ends are.
    Direction(Vec<Direction>),
    /// By the name of the flow's rule. A flow without a rule has none of all names.
    Rule(Choice),
    /// The flow is among this share of all, 0 to 1.
    Sample(f64),
    /// By the label of another task, or its taxonomy where no label has the name.
    Label {
        /// The other task.
        task: T,
        /// Labels and taxonomies.
        labels: Choice,
    },
    /// By the confidence of another task's label.
    Confidence {
        /// The other task.
        task: T,
        /// What it has to be.
        comparison: Comparison,
        /// What it is compared with, 0 to 1.
        bound: f32,
    },
}

words! {
    /// Protocols that flows have.
    pub enum Protocol {
        /// TCP.
        #[default]
        Tcp = "tcp",
        /// UDP.
        Udp = "udp",
    }
}

impl Protocol {
    /// As in an IP header.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => policy::TCP,
            Protocol::Udp => policy::UDP,
        }
    }
}

words! {
    /// Where the ends of a flow are: in `hosts.networks`, or, where that is empty, at private
    /// addresses.
    pub enum Direction {
        /// The originator is in the networks, and the responder is not.
        #[default]
        Out = "out",
        /// The responder is in the networks, and the originator is not.
        In = "in",
        /// Both are.
        Inside = "inside",
        /// Neither is.
        Outside = "outside",
    }
}

impl Direction {
    /// By whether originator and responder are in the networks.
    pub fn from_ends(originator_is_in: bool, responder_is_in: bool) -> Direction {
        match (originator_is_in, responder_is_in) {
            (true, false) => Direction::Out,
            (false, true) => Direction::In,
            (true, true) => Direction::Inside,
            (false, false) => Direction::Outside,
        }
    }
}

/// `= NAMES` or `!= NAMES`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Whether it has to be one of the names; otherwise it must be none of them.
    pub is_one: bool,
    /// The names.
    pub names: Vec<String>,
}

impl Choice {
    /// Whether the choice holds for something that has one of its names, or not.
    pub fn holds(&self, is_named: bool) -> bool {
        is_named == self.is_one
    }
}

words! {
    /// How a confidence is compared.
    pub enum Comparison {
        /// Less than the bound.
        #[default]
        Below = "<",
        /// The bound at most.
        AtMost = "<=",
        /// The bound at least.
        AtLeast = ">=",
        /// More than the bound.
        Above = ">",
    }
}

impl Comparison {
    /// Whether a confidence is on the right side of the bound.
    pub fn holds(self, confidence: f32, bound: f32) -> bool {
        match self {
            Comparison::Below => confidence < bound,
            Comparison::AtMost => confidence <= bound,
            Comparison::AtLeast => confidence >= bound,
            Comparison::Above => confidence > bound,
        }
    }

    /// The confidences on the right side of a bound, in steps of 1/65535, as label words hold them.
    /// A label word has the step that is nearest to the confidence, so the bound is taken to its
    /// nearest step, too. The first and the last step stand on the right side of every bound but 0
    /// and 1: `< 0.000001` means "not sure at all", and not "never".
    pub fn steps(self, bound: f32) -> RangeInclusive<u16> {
        const NONE: RangeInclusive<u16> = RangeInclusive::new(1, 0);
        let step = (bound * f32::from(u16::MAX)).round() as u16;
        match self {
            Comparison::Below if bound <= 0.0 => NONE,
            Comparison::Below => 0..=step.saturating_sub(1),
            Comparison::AtMost => 0..=step,
            Comparison::AtLeast => step..=u16::MAX,
            Comparison::Above if bound >= 1.0 => NONE,
            Comparison::Above => step.saturating_add(1)..=u16::MAX,
        }
    }
}

impl<T> When<T> {
    /// Whether the task is asked about every flow.
    pub fn is_always(&self) -> bool {
        self.terms.is_empty()
    }

    /// The other tasks whose labels it needs, once for each term.
    pub fn tasks(&self) -> impl Iterator<Item = &T> {
        self.terms.iter().filter_map(Term::task)
    }

    /// The same with other tasks named by `of`.
    ///
    /// # Errors
    /// The first of `of`, with its term.
    pub fn try_map<U, E>(&self, of: impl Fn(&Term<T>, &T) -> Result<U, E>) -> Result<When<U>, E> {
        let terms = self.terms.iter().map(|term| term.try_map(&of));
        Ok(When { terms: terms.collect::<Result<_, E>>()? })
    }
}

impl When {
    /// With names, for people; `name` gives a task's name by its number.
    pub fn named<'a>(&self, name: impl Fn(usize) -> &'a str) -> When<String> {
        let terms = self.terms.iter().map(|term| term.named(&name));
        When { terms: terms.collect() }
    }
}

impl<T> Term<T> {
    /// The other task whose label it needs.
    pub fn task(&self) -> Option<&T> {
        match self {
            Term::Label { task, .. } | Term::Confidence { task, .. } => Some(task),
            _ => None,
        }
    }

    fn try_map<U, E>(&self, of: impl Fn(&Term<T>, &T) -> Result<U, E>) -> Result<Term<U>, E> {
        Ok(match self {
            Term::Protocol(protocols) => Term::Protocol(protocols.clone()),
            Term::Port(ports) => Term::Port(ports.clone()),
            Term::InPort(names) => Term::InPort(names.clone()),
            Term::Vlan(vlans) => Term::Vlan(vlans.clone()),
            Term::Direction(directions) => Term::Direction(directions.clone()),
            Term::Rule(names) => Term::Rule(names.clone()),
            Term::Sample(share) => Term::Sample(*share),
            Term::Label { task, labels } => {
                Term::Label { task: of(self, task)?, labels: labels.clone() }
            }
            Term::Confidence { task, comparison, bound } => {
                Term::Confidence { task: of(self, task)?, comparison: *comparison, bound: *bound }
            }
        })
    }
}

impl Term {
    /// As [`When::named`].
    pub fn named<'a>(&self, name: impl Fn(usize) -> &'a str) -> Term<String> {
        let named =
            self.try_map(|_, task| Ok::<_, std::convert::Infallible>(name(*task).to_owned()));
        match named {
            Ok(term) => term,
            Err(never) => match never {},
        }
    }
}

impl fmt::Display for When<String> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, term) in self.terms.iter().enumerate() {
            if at > 0 {
                f.write_str(" and ")?;
            }
            write!(f, "{term}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Term<String> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Protocol(them) => list(f, "protocol", "=", them.iter().map(|it| it.name())),
            Term::Port(ports) => list(f, "port", "=", ports.iter().map(Shown)),
            Term::InPort(names) => list(f, "in_port", "=", names.iter().map(quoted)),
            Term::Vlan(vlans) => list(f, "vlan", "=", vlans.iter()),
            Term::Direction(them) => list(f, "direction", "=", them.iter().map(|it| it.name())),
            Term::Rule(choice) => choice.write(f, "rule"),
            Term::Sample(share) => write!(f, "sample = {share}"),
            Term::Label { task, labels } => labels.write(f, &format!("{task}.label")),
            Term::Confidence { task, comparison, bound } => {
                write!(f, "{task}.confidence {} {bound}", comparison.name())
            }
        }
    }
}

impl Choice {
    fn write(&self, f: &mut fmt::Formatter<'_>, subject: &str) -> fmt::Result {
        let comparison = if self.is_one { "=" } else { "!=" };
        list(f, subject, comparison, self.names.iter().map(quoted))
    }
}

/// Ports as they are read.
struct Shown<'a>(&'a Ports);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ports { first, last } if first == last => write!(f, "{first}"),
            Ports { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

fn list<V: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    subject: &str,
    comparison: &str,
    values: impl Iterator<Item = V>,
) -> fmt::Result {
    write!(f, "{subject} {comparison} ")?;
    for (at, value) in values.enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        write!(f, "{comma}{value}")?;
    }
    Ok(())
}

/// The start of a text that may be long, for messages.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A name as it is read: in quotes where it could mean something else without.
fn quoted(name: &String) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.:/+@".contains(c);
    match !name.is_empty() && name != parse::AND && name.chars().all(is_plain) {
        true => name.clone(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}
