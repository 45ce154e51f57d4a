//! Checks of `/livez` and `/readyz`, computed from the current state for each request.

use std::fmt::Write as _;

use super::collector::{Collector, Life, STALLED_AFTER, Watched};
use super::{Facts, State};
use crate::protocol::CheckRow;
use crate::sinks::Report;
use dataplane::counters::AnalyticsSnapshot;
use dataplane::state::{Pending, RuntimeState};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    pub state: State,
    /// Whether the data path moves; if not, only a restart helps.
    pub live: Vec<CheckRow>,
    /// Whether traffic is labelled.
    pub ready: Vec<CheckRow>,
}

impl Health {
    /// The health by the snapshots. A sum that does not close (not `is_balanced`), or one of
    /// several devices or interfaces that is down, makes it degraded, not unready.
    pub fn new(
        collector: &Collector,
        is_balanced: bool,
        facts: &Facts,
        is_draining: bool,
        run_state: &RuntimeState,
    ) -> Health {
        let opening = run_state.opening.as_ref();
        let threads = threads(collector);
        let devices = match opening {
            Some(_) => CheckRow {
                name: "devices".to_owned(),
                holds: false,
                reason: "none is open yet".to_owned(),
            },
            None => devices(collector),
        };
        let away = interfaces_away(collector, facts);
        let is_whole = is_balanced
            && collector.sinks.iter().all(Report::is_balanced)
            && faults(collector).next().is_none()
            && devices_down(collector).is_empty()
            && run_state.abandoned.is_empty()
            && away.is_empty();
        let state = if is_draining || collector.has_ended() {
            State::Draining
        } else if opening.is_some() || !collector.is_known() {
            State::Starting
        } else if threads.holds && devices.holds && is_whole {
            State::Ready
        } else {
            State::Degraded
        };
        let interfaces =
            facts.ports_up_least.map(|least| interfaces(&away, facts.ports.len(), least));
        let is_running = matches!(state, State::Ready | State::Degraded);
        let running = CheckRow {
            name: "running".to_owned(),
            holds: is_running,
            reason: match opening.filter(|_| state == State::Starting) {
                Some(Pending { what, since }) => {
                    let seconds = since.elapsed().as_secs_f64();
                    format!("{}: {what} for {seconds:.1} s", state.name())
                }
                None => state.name().to_owned(),
            },
        };
        let mut ready = vec![running, threads.clone(), devices];
        ready.extend(interfaces);
        ready.extend(helpers(run_state));
        ready.extend(faults(collector));
        Health { state, live: vec![threads], ready }
    }
}

/// Abandoned helpers that still run. They keep memory, and perhaps a core, so they are named; but
/// traffic is labelled, so the check holds.
fn helpers(run_state: &RuntimeState) -> Option<CheckRow> {
    let abandoned = run_state.abandoned.iter().map(|it| {
        let (what, seconds) = (&it.what, it.since.elapsed().as_secs_f64());
        format!("{what}: abandoned, but still running after {seconds:.0} s")
    });
    let abandoned: Vec<String> = abandoned.collect();
    (!abandoned.is_empty()).then(|| CheckRow {
        name: "helpers".to_owned(),
        holds: true,
        reason: abandoned.join("; "),
    })
}

/// Sinks that do not work.
fn faults(collector: &Collector) -> impl Iterator<Item = CheckRow> {
    let faults = collector.sinks.iter().filter_map(|it| it.fault.as_ref());
    faults.map(|(name, reason)| CheckRow {
        name: (*name).to_owned(),
        holds: false,
        reason: reason.clone(),
    })
}

/// Holds if every thread of the data path answers.
fn threads(collector: &Collector) -> CheckRow {
    let mut wrong = wrong_with(collector.flows.iter());
    wrong.extend(wrong_with(collector.analytics_threads()));
    let count = collector.flows.len() + collector.analytics_threads().count();
    CheckRow {
        name: "threads".to_owned(),
        holds: wrong.is_empty(),
        reason: match wrong.is_empty() {
            true => format!("all {count} answer or have ended"),
            false => wrong.join("; "),
        },
    }
}

fn wrong_with<'a, T: 'a>(watched: impl Iterator<Item = &'a Watched<T>>) -> Vec<String> {
    let wrong = watched.filter_map(|it| match it.life {
        Life::Died => Some(format!("{} has died", it.thread)),
        _ if it.owes() > STALLED_AFTER => {
            Some(format!("{} has not answered for {:.1} s", it.thread, it.owes().as_secs_f64()))
        }
        Life::Running | Life::Ended => None,
    });
    wrong.collect()
}

fn interfaces_away<'a>(collector: &Collector, facts: &'a Facts) -> Vec<&'a str> {
    let is_away = |port: usize| {
        let mut flows = collector.flows.iter();
        flows.any(|flows| flows.latest.ports.get(port).is_some_and(|it| it.rx.is_away))
    };
    let ports = facts.ports.iter().enumerate();
    let away = ports.filter(|(port, _)| facts.ports_up_least.is_some() && is_away(*port));
    away.map(|(_, name)| name.as_str()).collect()
}

/// Holds if at least `least` interfaces are up; the others are named in any case.
fn interfaces(away: &[&str], all: usize, least: usize) -> CheckRow {
    CheckRow {
        name: "interfaces".to_owned(),
        holds: all - away.len() >= least,
        reason: match away {
            [] => format!("all {all} up"),
            _ => format!("down or gone: {}", away.join(", ")),
        },
    }
}

/// Holds if every task has a working device on every thread that serves it; devices that are down
/// are named in any case.
fn devices(collector: &Collector) -> CheckRow {
    let has_device = |it: &Watched<AnalyticsSnapshot>| {
        let mut tasks = it.latest.tasks.iter();
        tasks.all(|task| task.states.is_empty() || task.states.iter().any(|it| it.is_up()))
    };
    let down = devices_down(collector);
    let analytics = collector.analytics.iter();
    let all: usize = analytics.map(|it| it.latest.devices().count()).sum();
    CheckRow {
        name: "devices".to_owned(),
        holds: collector.analytics.iter().all(has_device),
        reason: if down.is_empty() { format!("all {all} up") } else { down.join("; ") },
    }
}

fn devices_down(collector: &Collector) -> Vec<String> {
    let mut wrong = Vec::new();
    for it in &collector.analytics {
        let devices = it.latest.devices();
        for (state, device) in devices.filter(|(state, _)| !state.is_up()) {
            let error = device.last_error.as_deref().unwrap_or("no error was reported");
            wrong.push(format!(
                "{} of {} is {}: {error}",
                device.requested,
                it.thread,
                state.name()
            ));
        }
    }
    wrong
}

pub fn hold(checks: &[CheckRow]) -> bool {
    checks.iter().all(|check| check.holds)
}

pub fn page(checks: &[CheckRow]) -> String {
    let mut page = String::new();
    for check in checks {
        let sign = if check.holds { '+' } else { '-' };
        // Writing to a string cannot fail.
        let _ = writeln!(page, "[{sign}] {}: {}", check.name, check.reason);
    }
    page + verdict(checks)
}

pub fn verdict(checks: &[CheckRow]) -> &'static str {
    if hold(checks) { "ok\n" } else { "not ok\n" }
}
