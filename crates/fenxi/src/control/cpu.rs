//! CPU time of the program's threads, as the kernel counts it (proc_pid_stat(5)).

use std::collections::BTreeMap;
use std::fs;

/// CPU time of all threads, user and system, in seconds: summed by name as the system shows it.
/// Empty without `/proc`.
pub fn thread_times() -> BTreeMap<String, f64> {
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let mut times: BTreeMap<String, f64> = BTreeMap::new();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    for task in tasks.flatten() {
        // A thread may end meanwhile.
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        if let Some((name, ticks)) = parse(&stat) {
            *times.entry(name.to_owned()).or_default() += ticks as f64 / ticks_per_s;
        }
    }
    times
}

/// Name and ticks of a `stat` file. The name stands in brackets and may itself contain brackets.
fn parse(stat: &str) -> Option<(&str, u64)> {
    let (before, fields) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once('(')?;
    let mut fields = fields.split(' ').skip(11); // utime is the 14th, behind pid, name and state
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((name, user + system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_brackets_and_spaces() {
        let stat = "7 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15";
        assert_eq!(parse(stat), Some(("a) b) (c", 11 + 12)));
        assert_eq!(parse("7 (a"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_thread_is_among_them() {
        let name = fs::read_to_string("/proc/thread-self/comm").unwrap();
        assert!(thread_times().contains_key(name.trim_end()));
    }
}
