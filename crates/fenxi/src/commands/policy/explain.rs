//! `fenxi policy explain`: which rule a flow gets, and which ones it beat.

use dataplane::tasks::OpenTask;
use policy::analysis::{Explanation, Lack, Match, Verdict};
use policy::{Facts, Label, Moment, Names, RuleSet, Tuple};
use rulefiles::write;
use serde_json::{Value, json};

use super::{labels, read, text, title};
use crate::cli::PolicyExplainArgs;
use crate::exit::{Failure, print};
use crate::figures::grouped;
use crate::protocol::FlowQuery;
use crate::rules::{LocalClock, outside};

pub fn explain(args: &PolicyExplainArgs) -> Result<(), Failure> {
    let query = args.flow.join(" ").parse::<FlowQuery>();
    let query = query.map_err(|error| Failure::usage(error.to_string()))?;
    let FlowQuery::Ends { protocol: Some(protocol), a, b } = query else {
        return Err(Failure::usage(
            "rules need the ends and the protocol of a flow, for example 10.0.0.5:4000 > \
            192.0.2.4:443 tcp",
        ));
    };
    let rules = read(&args.rules, &[])?.set;
    let in_port = in_port(&rules, args.in_port.as_deref());
    let Some(tuple) = Tuple::new(protocol, a, b, in_port) else {
        return Err(Failure::usage(
            "the ends of the flow are of different families; a flow is IPv4 or IPv6",
        ));
    };
    let called = called(args)?;
    let facts = Facts {
        behaviour: args.behaviour as u8,
        bytes: args.bytes,
        packets: args.packets,
        age_us: (args.age_s * 1e6) as u64,
        vlan: args.vlan,
        dscp: args.dscp_seen.code_point(),
        ..Facts::default()
    };
    let now = || LocalClock::of_machine().now();
    let moment = Moment {
        time: args.at.unwrap_or_else(now),
        profiles: args.profile.iter().cloned().collect(),
        ..Moment::default()
    };
    let explanation = policy::analysis::explain(&rules, &tuple, &called, &facts, &moment);
    match args.json {
        true => print(&format!("{}\n", as_json(&rules, &explanation, args.top))),
        false => print(&page(&rules, &explanation, &query, called.first(), args.top)),
    }
}

/// Number of an interface; one that no rule names matches only rules for all interfaces.
fn in_port(rules: &RuleSet, name: Option<&str>) -> u8 {
    let place = name.map(|name| rules.interfaces.iter().position(|known| known == name));
    match place {
        None => 0,
        Some(None) => u8::MAX,
        Some(Some(place)) => u8::try_from(place + 1).unwrap_or(u8::MAX),
    }
}

/// What rules may call the flow's label, with its taxonomy, by the given model or else by a
/// run: as the user did first, then with the name of its task.
fn called(args: &PolicyExplainArgs) -> Result<Vec<Label>, Failure> {
    let Some(name) = &args.label else {
        return Ok(Vec::new());
    };
    let (labels, tasks, model) = match &args.model {
        Some(dir) => (vec![labels(dir)?], Vec::new(), dir.display().to_string()),
        None => {
            let config = args.config.of_service().load()?.config;
            let tasks = OpenTask::open_all(&config, None)?;
            let names = tasks.iter().map(|task| task.name.clone());
            let model = tasks[0].bundle.name().to_owned();
            (OpenTask::all_labels(&tasks), names.collect(), model)
        }
    };
    let names = Names { labels, tasks, ..Names::default() };
    let found = names.label(name);
    let (task, label) = found.ok_or_else(|| {
        let known = policy::listed(&names.labels[0]);
        Failure::data(format!(
            "{model}: the model has no label \"{name}\"; it has {known}; --model DIR takes another \
            one"
        ))
    })?;
    let with_task = |name: &str| match (name, names.tasks.get(task)) {
        ("", _) | (_, None) => String::new(),
        (name, Some(task)) => format!("{task}.{name}"),
    };
    let of_task = Label {
        name: with_task(&label.name),
        taxonomy: with_task(&label.taxonomy),
        ..Label::default()
    };
    let band = label.band().map(|name| Label { name, ..Label::default() });
    let own = (*name == label.name).then(|| label.clone());
    Ok(own.into_iter().chain([of_task]).chain(band).collect())
}

fn page(
    rules: &RuleSet,
    explanation: &Explanation,
    flow: &FlowQuery,
    label: Option<&Label>,
    most: usize,
) -> String {
    let label = label.map_or("no label yet".to_owned(), |label| match &*label.taxonomy {
        "" => label.name.clone(),
        taxonomy => format!("{} ({taxonomy})", label.name),
    });
    let mut page = format!("{flow}, {label}\n");
    let mut line = |text: String| {
        page += &format!("{text}\n");
    };
    for found in explanation.matches.iter().take(most) {
        let (title, text) = (title(rules, found.rule), text(rules, found.rule));
        line(format!("{:8} {title}: {text}", verdict(found)));
        if let Some(reason) = reason(found) {
            line(format!("{:8}   {reason}", ""));
        }
    }
    if explanation.matches.len() > most {
        let more = grouped((explanation.matches.len() - most) as u64);
        line(format!("and {more} more"));
    }
    if explanation.winner().is_none() {
        line("no rule matches; the label decides".to_owned());
    }
    page
}

fn verdict(found: &Match) -> &'static str {
    match found.verdict {
        Verdict::Wins => "wins",
        Verdict::Share(_) => "may win",
        Verdict::Loses => "loses",
        Verdict::Lacks(_) => "waits",
    }
}

/// What a rule waits for, or which flows it counts for.
fn reason(found: &Match) -> Option<String> {
    match &found.verdict {
        Verdict::Wins | Verdict::Loses => None,
        Verdict::Share(share) => {
            let percent = f64::from(*share) * 100.0 / 65_536.0;
            Some(format!(
                "counts for {percent:.4} % of the flows, chosen by a hash; the others go on"
            ))
        }
        Verdict::Lacks(lacks) => {
            let lacks: Vec<String> = lacks.iter().map(lack).collect();
            Some(lacks.join(", and "))
        }
    }
}

fn lack(lack: &Lack) -> String {
    let or = |names: Vec<String>| names.join(" or ");
    match lack {
        Lack::Label(labels) => format!("needs the label or taxonomy {}", labels.join(" or ")),
        Lack::Behaviour(names) => format!("needs the behaviour {}", names.join(" or ")),
        Lack::Host(hosts) => {
            format!("needs the host {} as an end", or(write::hosts(hosts).collect()))
        }
        Lack::Vlan { wanted, has } => {
            format!("needs the VLAN {}, has {has}", or(wanted.iter().map(write::vlans).collect()))
        }
        Lack::Dscp { wanted, has } => {
            format!("needs the DSCP {}, has {has}", or(write::dscps(*wanted).collect()))
        }
        Lack::Hours(hours) => outside(hours),
        Lack::Profile(name) => format!("profile {name} is off"),
        Lack::Over { what, unit, bound, has } => {
            let (bound, has) = (grouped(*bound), grouped(*has));
            format!("needs {what} over {bound} {unit}, has {has}")
        }
    }
}

fn as_json(rules: &RuleSet, explanation: &Explanation, most: usize) -> Value {
    let found = explanation.matches.iter().take(most).map(|found| {
        json!({
            "rule": title(rules, found.rule),
            "text": text(rules, found.rule),
            "priority": rules.rules[found.rule as usize].rank.priority(),
            "verdict": verdict(found),
            "reason": reason(found),
        })
    });
    json!({
        "winner": explanation.winner().map(|rule| title(rules, rule)),
        "rules": found.collect::<Vec<_>>(),
        "matches": explanation.matches.len(),
    })
}
