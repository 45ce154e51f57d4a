//! The questions, on the terminal.

use std::io::{self, BufRead, IsTerminal};

use super::text::default_route;
use super::{Answers, Want};
use crate::cli::{InitArgs, Link};
use crate::exit::{Failure, remark};
use crate::proc::Machine;

/// What can be wanted, in the order in which it is offered.
const WANTS: [(Want, &str, &str); 3] = [
    (Want::See, "see", "what is on the network; nothing is changed"),
    (Want::Shape, "shape", "calls first, big uploads and downloads last"),
    (Want::Export, "export", "records of all flows, for other programs"),
];

/// Answers that are options are taken, the others are asked for on the terminal.
pub fn answers(args: &InitArgs, machine: &Machine, known: &[String]) -> Result<Answers, Failure> {
    let missing = [
        (args.want.is_none(), "--want see|shape|export"),
        (args.interface.is_none(), "--interface NAME"),
        (args.link.is_none(), "--link RATE"),
    ];
    let missing = missing.into_iter().filter(|(is_missing, _)| *is_missing);
    let missing: Vec<&str> = missing.map(|(_, option)| option).collect();
    if !missing.is_empty() && !io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "init asks on a terminal, and stdin is none; give the answers as options: {}",
            missing.join(" ")
        )));
    }
    let want = match args.want {
        Some(want) => want,
        None => ask_want()?,
    };
    let interface = match &args.interface {
        Some(name) => name.clone(),
        None => ask_interface(machine, known)?,
    };
    let link = match args.link {
        Some(link) => link,
        None => ask("How fast is the link? 100mbit, or down/up as 50mbit/5mbit: ", Link::parse)?,
    };
    Ok(Answers { want, interface, link })
}

fn ask_want() -> Result<Want, Failure> {
    let mut question = "What do you want?\n".to_owned();
    for (at, (_, name, what)) in WANTS.iter().enumerate() {
        question += &format!("  {} {name:<7} {what}\n", at + 1);
    }
    let names = WANTS.map(|(_, name, _)| name);
    let at = ask(&(question + "Number or name: "), |answer| position(answer, &names))?;
    Ok(WANTS[at].0)
}

fn ask_interface(machine: &Machine, known: &[String]) -> Result<String, Failure> {
    let mut question =
        "Which interface? On a router, the inner one, to your own network.\n".to_owned();
    let uplink = default_route(machine);
    // A port of a bridge sees a part of its traffic.
    let is_port =
        |name: &str| machine.text(&format!("sys/class/net/{name}/brport/state")).is_some();
    let names = known.iter().map(String::as_str).filter(|name| !is_port(name));
    let names: Vec<&str> = names.collect();
    for (at, name) in names.iter().enumerate() {
        let state = machine.text(&format!("sys/class/net/{name}/operstate")).unwrap_or_default();
        let route = if uplink.as_deref() == Some(name) { ", to the Internet" } else { "" };
        question += &format!("  {} {name:<15} {state}{route}\n", at + 1);
    }
    let at = ask(&(question + "Number or name: "), |answer| position(answer, &names))?;
    Ok(names[at].to_owned())
}

/// Which of these is meant, by its name or by its number from 1. A name that is a number comes
/// first.
fn position(answer: &str, names: &[&str]) -> Result<usize, String> {
    let by_name = names.iter().position(|name| *name == answer);
    let by_number = || answer.parse::<usize>().ok()?.checked_sub(1).filter(|at| *at < names.len());
    by_name.or_else(by_number).ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

/// Asks until there is an answer.
fn ask<T>(question: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<T, Failure> {
    remark(question)?;
    loop {
        let mut line = String::new();
        let bytes = io::stdin().lock().read_line(&mut line);
        if bytes.map_err(|error| Failure::io(format!("stdin: read failed: {error}")))? == 0 {
            return Err(Failure::usage("no answer; nothing was written"));
        }
        match read(line.trim()) {
            Ok(answer) => return Ok(answer),
            Err(why) => remark(&format!("{why}: "))?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_a_name_is_an_answer() {
        let names = ["eth0", "2", "wan"];
        let at = |answer| position(answer, &names).ok();
        assert_eq!([at("eth0"), at("wan"), at("1"), at("3")], [Some(0), Some(2), Some(0), Some(2)]);
        assert_eq!(at("2"), Some(1));
        assert_eq!([at(""), at("0"), at("4"), at("eth")], [None; 4]);
    }
}
