//! The clock source of timestamps.

use super::finding::Finding;
use super::machine::Machine;

const CHECK: &str = "clock";

/// Sources that cost a system call of a microsecond or more, not a few instructions.
const SLOW: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "xen"];

pub fn findings(machine: &Machine) -> Option<Finding> {
    let folder = "sys/devices/system/clocksource/clocksource0";
    let current = machine.text(&format!("{folder}/current_clocksource"))?;
    if !SLOW.contains(&current.as_str()) {
        return Some(Finding::ok(CHECK, "", current));
    }
    let available = machine.text(&format!("{folder}/available_clocksource")).unwrap_or_default();
    let fast = available.split_whitespace().find(|source| !SLOW.contains(source));
    let line = fast.map(|source| format!("echo {source} > /{folder}/current_clocksource"));
    let cause = format!("{current}: every timestamp is a slow system call");
    Some(Finding::warning(CHECK, "", cause).cure_if(line))
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::machine;
    use super::*;

    #[test]
    fn a_slow_clock_and_its_remedy() {
        let current = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        let available = "sys/devices/system/clocksource/clocksource0/available_clocksource";
        let of = |files: &[(&str, &str)]| findings(&machine(files).1);
        let line = of(&[(current, "hpet\n"), (available, "hpet tsc\n")]).unwrap().remedy;
        assert_eq!(
            line.unwrap(),
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"
        );
        assert_eq!(of(&[(current, "hpet\n"), (available, "hpet\n")]).unwrap().remedy, None);
        assert_eq!(of(&[(current, "tsc\n")]).unwrap().cause, "tsc");
        assert_eq!(of(&[]), None);
    }
}
