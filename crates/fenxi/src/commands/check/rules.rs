//! Mode mark: rules of the kernel that write the bits of `mark.mask`, or no longer match once fenxi
//! writes them.

use std::process::{Command, Stdio};

use super::ruleset::{Bits, Conflict, Ruleset};
use accel::Bundle;
use config::Config;
use dataplane::label_map::LabelMap;

use super::finding::Finding;

const CHECK: &str = "marks";
const NAME: &str = "rules";

/// Conflicts that are shown; the others are counted.
const SHOWN: usize = 8;

pub fn read() -> Result<Ruleset, String> {
    let mut rules = Ruleset::default();
    rules.add_nft(&output("nft", &["-j", "list", "ruleset"])?);
    // Without these programs there are none of their rules either, or nft names them.
    for program in ["iptables-save", "ip6tables-save"] {
        let Ok(text) = output(program, &[]) else {
            continue;
        };
        rules.add_iptables(program, &text);
        // The older kind of rules, where both can be used side by side.
        if text.contains("(nf_tables)") {
            let legacy = program.replace("-save", "-legacy-save");
            if let Ok(text) = output(&legacy, &[]) {
                rules.add_iptables(&legacy, &text);
            }
        }
    }
    for (ip, arguments) in [("ip", &["-j", "rule"][..]), ("ip -6", &["-6", "-j", "rule"])] {
        if let Ok(json) = output("ip", arguments) {
            rules.add_ip_rules(ip, &json);
        }
    }
    Ok(rules)
}

fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{program} cannot be run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().next().unwrap_or("it says nothing").trim();
        return Err(format!("{program} {}: {line}", arguments.join(" ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The bits of each task whose labels write some.
pub fn bits(config: &Config, bundles: &[Bundle]) -> Vec<Bits> {
    let tasks = config.tasks.iter().zip(bundles).enumerate();
    let bits = tasks.filter_map(|(number, (task, bundle))| {
        let own = config.of_task(number);
        let map = LabelMap::from_config(&own, bundle).ok()?;
        let marks = map.rows().iter().filter_map(|(_, action)| action.mark);
        let key = match number {
            0 => "mark.mask".to_owned(),
            _ => format!("task.{}.mark_mask", task.name),
        };
        Some(Bits { key, mask: own.mark.mask, values: marks.map(|mark| mark.bits).collect() })
    });
    bits.filter(|bits| bits.mask != 0).collect()
}

pub fn findings(rules: &Result<Ruleset, String>, bits: &[Bits]) -> Vec<Finding> {
    let rules = match rules {
        Ok(rules) => rules,
        Err(why) => {
            let cause = format!("not known whether rules use the bits of mark.mask: {why}");
            return vec![
                Finding::warning(CHECK, NAME, cause)
                    .cure("apt-get install nftables && sudo fenxi check --deep"),
            ];
        }
    };
    let conflicts: Vec<Conflict> = bits.iter().flat_map(|bits| rules.conflicts(bits)).collect();
    let mut findings: Vec<Finding> = conflicts.iter().take(SHOWN).map(warning).collect();
    if conflicts.len() > SHOWN {
        let cause =
            format!("{} more rules collide with the bits of fenxi", conflicts.len() - SHOWN);
        findings.push(Finding::warning(CHECK, NAME, cause).cure("nft -a list ruleset"));
    }
    if rules.unread > 0 {
        let cause = format!(
            "{} rules of iptables concern marks, and only iptables-save, which is not installed, \
             can show them",
            rules.unread
        );
        findings.push(Finding::warning(CHECK, NAME, cause).cure("apt-get install iptables"));
    }
    if findings.is_empty() {
        let masks = bits.iter().map(|it| format!("{} = {:#x}", it.key, it.mask));
        let masks: Vec<String> = masks.collect();
        let cause = format!("none collides with {}", masks.join(", "));
        findings.push(Finding::ok(CHECK, NAME, cause));
    }
    findings
}

fn warning(conflict: &Conflict) -> Finding {
    Finding::warning(CHECK, &conflict.place, conflict.cause.clone()).cure(conflict.remedy.clone())
}
