//! Rules of iptables, as `iptables-save` prints them (iptables-extensions(8)).

use super::{Compared, Rule, Written};

pub fn read(program: &str, text: &str) -> Vec<Rule> {
    let mut table = "";
    let mut rules = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let mut words = line.split_whitespace();
        if words.next() == Some("-A") {
            let chain = words.next().unwrap_or_default();
            let command = program.trim_end_matches("-save");
            rules.push(Rule {
                place: format!("{command} {table} {chain}: {line}"),
                show: format!("{command} -t {table} -S {chain}"),
                ..of_words(&words.collect::<Vec<_>>())
            });
        }
    }
    rules
}

fn of_words(words: &[&str]) -> Rule {
    let mut rule = Rule::default();
    // The match or target that options belong to.
    let (mut module, mut target) = ("", "");
    let mut is_negated = false;
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).copied().unwrap_or_default();
        match *word {
            "-m" => module = next,
            "-j" => target = next,
            "--ctstate" | "--state" => rule.is_first |= next == "NEW" && !is_negated,
            "--mark" => {
                let (value, mask) = value_and_mask(next);
                let compared = Compared { mask, value };
                match module {
                    "connmark" => {
                        rule.is_first |= compared.is_unset(u32::MAX) && !is_negated;
                        rule.connection.push(compared);
                    }
                    _ => rule.packet.push(compared),
                }
            }
            "--set-xmark" | "--set-mark" => {
                let (value, mask) = value_and_mask(next);
                match target {
                    "CONNMARK" => {
                        let kept = Written::CONNECTION.and(!mask);
                        rule.to_connection.push(kept.or(value));
                    }
                    "MARK" => rule.to_packet.push(Written::PACKET.and(!mask).or(value)),
                    _ => {}
                }
            }
            "--save-mark" => {
                let (packet, connection) = copied(words);
                rule.to_connection.push(Written {
                    connection: !(connection | packet),
                    packet,
                    ones: 0,
                });
            }
            "--restore-mark" => {
                let (packet, connection) = copied(words);
                rule.to_packet.push(Written {
                    connection,
                    packet: !(connection | packet),
                    ones: 0,
                });
            }
            _ => {}
        }
        is_negated = *word == "!";
    }
    rule
}

/// The bits of the packet's mark and of the connection's mark that a copy concerns.
fn copied(words: &[&str]) -> (u32, u32) {
    let of = |name: &str| {
        let at = words.iter().position(|word| *word == name);
        let value = at.and_then(|at| words.get(at + 1));
        value.map_or(u32::MAX, |value| number(value))
    };
    (of("--nfmask"), of("--ctmask"))
}

/// `0x100/0x3f00`, or a value that is meant as a whole.
fn value_and_mask(text: &str) -> (u32, u32) {
    match text.split_once('/') {
        Some((value, mask)) => (number(value), number(mask)),
        None => (number(text), u32::MAX),
    }
}

/// A number as the program prints it. What is none, which does not happen, is taken for all bits.
pub fn number(text: &str) -> u32 {
    let read = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    read.unwrap_or(u32::MAX)
}
