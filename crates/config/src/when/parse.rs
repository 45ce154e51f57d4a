//! From the text of `task.when` to its terms.

use std::ops::Range;

use policy::Ports;

use super::{Choice, Comparison, Direction, Protocol, Term, When, shortened};
use crate::suggest;

/// The word between terms.
pub(super) const AND: &str = "and";

/// What a term may begin with.
const SUBJECTS: [&str; 9] = [
    "protocol",
    "port",
    "in_port",
    "vlan",
    "direction",
    "rule",
    "sample",
    "TASK.label",
    "TASK.confidence",
];

/// Words that others use for a subject.
const OTHER_WORDS: [(&str, &str); 6] = [
    ("interface", "in_port"),
    ("destination_port", "port"),
    ("server_port", "port"),
    ("share", "sample"),
    ("label", "TASK.label"),
    ("confidence", "TASK.confidence"),
];

/// A text that is no `when`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{term}: {why}")]
pub struct WhenError {
    /// The term that is wrong.
    pub term: String,
    /// What is wrong with it, and the cure.
    pub why: String,
}

impl When<String> {
    /// Reads the text of `task.when`; an empty one means every flow.
    ///
    /// # Errors
    /// The first term that is none.
    pub fn parse(text: &str) -> Result<When<String>, WhenError> {
        let tokens = tokens(text).map_err(|why| error(text, why))?;
        if tokens.is_empty() {
            return Ok(When::default());
        }
        let terms = tokens.split(|(token, _)| *token == Token::Word(AND));
        let term = |tokens: &[Spanned<'_>]| {
            let [(_, first), ..] = tokens else {
                let why = "expected a term on both sides of \"and\"";
                return Err(error(text, why.to_owned()));
            };
            let end = tokens.last().map_or(first.end, |(_, last)| last.end);
            let whole = &text[first.start..end];
            self::term(tokens).map_err(|why| error(whole, why))
        };
        Ok(When { terms: terms.map(term).collect::<Result<_, _>>()? })
    }
}

fn error(term: &str, why: String) -> WhenError {
    // A message is one line.
    let one_line = |text: String| text.replace(char::is_control, " ");
    WhenError { term: one_line(shortened(term.trim())), why: one_line(why) }
}

#[derive(Debug, Clone, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Quoted(String),
    Comma,
    /// Characters of comparisons, not necessarily of one that there is.
    Comparison(&'a str),
}

type Spanned<'a> = (Token<'a>, Range<usize>);

impl Token<'_> {
    /// What stands for a value.
    fn value(&self) -> Option<&str> {
        match self {
            Token::Word(text) => Some(text),
            Token::Quoted(text) => Some(text),
            _ => None,
        }
    }
}

fn is_quote(c: char) -> bool {
    c == '"' || c == '\''
}

fn is_of_comparison(c: char) -> bool {
    "=!<>".contains(c)
}

fn is_of_word(c: char) -> bool {
    !(c.is_whitespace() || c == ',' || is_quote(c) || is_of_comparison(c))
}

fn tokens(text: &str) -> Result<Vec<Spanned<'_>>, String> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let run = |of: fn(char) -> bool| rest.find(|c| !of(c)).unwrap_or(rest.len());
        let (token, length) = match c {
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            ',' => (Token::Comma, 1),
            c if is_quote(c) => quoted(rest, c)?,
            c if is_of_comparison(c) => {
                let length = run(is_of_comparison);
                (Token::Comparison(&rest[..length]), length)
            }
            _ => {
                let length = run(is_of_word);
                (Token::Word(&rest[..length]), length)
            }
        };
        tokens.push((token, at..at + length));
        at += length;
    }
    Ok(tokens)
}

/// The text in quotes at the start of `rest`, and its length with the quotes. Two quotes in it
/// stand for one.
fn quoted(rest: &str, quote: char) -> Result<(Token<'_>, usize), String> {
    let mut value = String::new();
    let mut at = 1;
    while let Some(length) = rest[at..].find(quote) {
        value.push_str(&rest[at..at + length]);
        at += length + 1;
        if !rest[at..].starts_with(quote) {
            return Ok((Token::Quoted(value), at));
        }
        value.push(quote);
        at += 1;
    }
    Err(format!("a {quote} is missing at the end of a value"))
}

fn term(tokens: &[Spanned<'_>]) -> Result<Term<String>, String> {
    let tokens: Vec<&Token<'_>> = tokens.iter().map(|(token, _)| token).collect();
    let (text, rest) = match tokens.as_slice() {
        [Token::Word(text), rest @ ..] => (*text, rest),
        _ => return Err(format!("expected {}", any_of(&SUBJECTS))),
    };
    let subject = Subject::parse(text)?;
    let compared = any_of(subject.comparisons());
    let (comparison, values) = match rest {
        [Token::Comparison(comparison), values @ ..] => (*comparison, values),
        _ => {
            return Err(format!("expected {compared} after {}", shortened(text)));
        }
    };
    if !subject.comparisons().contains(&comparison) {
        return Err(format!(
            "found {}, expected {compared} after {}",
            shortened(comparison),
            shortened(text)
        ));
    }
    subject.term(comparison, &values_of(values)?)
}

/// Values between commas.
fn values_of<'a>(tokens: &[&'a Token<'_>]) -> Result<Vec<&'a str>, String> {
    let mut values = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match (at % 2, token.value(), token) {
            (0, Some(value), _) => values.push(value),
            (1, None, Token::Comma) => {}
            (1, Some(more), _) => {
                return Err(format!(
                    "found {} after a value, expected a comma or \"and\"; put a value with spaces \
                     in quotes",
                    shortened(more)
                ));
            }
            _ => return Err("expected a value on both sides of each comma".to_owned()),
        }
    }
    match tokens.len() % 2 {
        1 => Ok(values),
        _ if tokens.is_empty() => Err("the value is missing".to_owned()),
        _ => Err("expected a value on both sides of each comma".to_owned()),
    }
}

/// What a term is about.
enum Subject<'a> {
    Protocol,
    Port,
    InPort,
    Vlan,
    Direction,
    Rule,
    Sample,
    Label(&'a str),
    Confidence(&'a str),
}

impl<'a> Subject<'a> {
    fn parse(text: &'a str) -> Result<Subject<'a>, String> {
        let unknown = || {
            let other = OTHER_WORDS.iter().find(|(word, _)| *word == text);
            let near = match other {
                Some((_, subject)) => format!("; did you mean {subject}?"),
                None => suggest(text, SUBJECTS),
            };
            format!("unknown {}; expected {}{near}", shortened(text), any_of(&SUBJECTS))
        };
        Ok(match text.rsplit_once('.') {
            Some((task, "label")) if !task.is_empty() => Subject::Label(task),
            Some((task, "confidence")) if !task.is_empty() => Subject::Confidence(task),
            Some((task, field)) => {
                let near = suggest(field, ["label", "confidence"]);
                let task = shortened(task);
                return Err(format!(
                    "a task has a label and a confidence; write {task}.label or \
                     {task}.confidence{near}"
                ));
            }
            None => match text {
                "protocol" => Subject::Protocol,
                "port" => Subject::Port,
                "in_port" => Subject::InPort,
                "vlan" => Subject::Vlan,
                "direction" => Subject::Direction,
                "rule" => Subject::Rule,
                "sample" => Subject::Sample,
                _ => return Err(unknown()),
            },
        })
    }

    fn comparisons(&self) -> &'static [&'static str] {
        match self {
            Subject::Rule | Subject::Label(_) => &["=", "!="],
            Subject::Confidence(_) => Comparison::NAMES,
            _ => &["="],
        }
    }

    fn term(&self, comparison: &str, values: &[&str]) -> Result<Term<String>, String> {
        let owned = || values.iter().map(|&value| value.to_owned()).collect();
        let choice = || Choice { is_one: comparison == "=", names: owned() };
        Ok(match self {
            Subject::Protocol => {
                Term::Protocol(each(values, |text| word(text, Protocol::NAMES, Protocol::parse))?)
            }
            Subject::Port => Term::Port(each(values, ports)?),
            Subject::InPort => Term::InPort(owned()),
            Subject::Vlan => Term::Vlan(each(values, vlan)?),
            Subject::Direction => Term::Direction(each(values, |text| {
                word(text, Direction::NAMES, Direction::parse)
            })?),
            Subject::Rule => Term::Rule(choice()),
            Subject::Sample => Term::Sample(share(values)?),
            Subject::Label(task) => Term::Label { task: (*task).to_owned(), labels: choice() },
            Subject::Confidence(task) => Term::Confidence {
                task: (*task).to_owned(),
                comparison: Comparison::parse(comparison).unwrap_or_default(),
                bound: share(values)?,
            },
        })
    }
}

fn each<V>(values: &[&str], of: impl Fn(&str) -> Result<V, String>) -> Result<Vec<V>, String> {
    values.iter().map(|text| of(text)).collect()
}

fn word<V>(text: &str, words: &[&'static str], of: fn(&str) -> Option<V>) -> Result<V, String> {
    of(text).ok_or_else(|| {
        let near = suggest(text, words.iter().copied());
        format!("found {}, expected {}{near}", shortened(text), any_of(words))
    })
}

/// The number of a VLAN (IEEE 802.1Q).
fn vlan(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (0..=4094).contains(number));
    number.ok_or_else(|| format!("found {}, expected a VLAN from 0 to 4094", shortened(text)))
}

/// A port, or the first and the last.
fn ports(text: &str) -> Result<Ports, String> {
    let port = |text: &str| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_plain)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ends = port(first).zip(port(last));
    let ports = ends.map(|(first, last)| Ports { first, last });
    ports.filter(|ports| ports.first <= ports.last).ok_or_else(|| {
        format!(
            "found {}, expected a port from 0 to 65535, or the first and the last as in \
                 8000-8100",
            shortened(text)
        )
    })
}

/// One number from 0 to 1, written with digits and a point.
fn share<N: std::str::FromStr + PartialOrd + From<u8>>(values: &[&str]) -> Result<N, String> {
    let [text] = values else {
        return Err(format!("found {} values, expected one", values.len()));
    };
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = text.parse::<N>().ok().filter(|_| is_plain);
    number
        .filter(|number| *number <= N::from(1))
        .ok_or_else(|| format!("found {}, expected a number from 0 to 1", shortened(text)))
}

/// `a, b or c`.
fn any_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [words @ .., last] => format!("{} or {last}", words.join(", ")),
    }
}
