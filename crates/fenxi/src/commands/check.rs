//! `fenxi check`: validates a configuration and draws its pipeline; with `--deep`, looks at the machine that is to run it.

mod capabilities;
mod clock;
mod control;
mod cores;
mod draw;
mod finding;
mod interfaces;
mod interrupts;
mod machine;
mod marks;
mod memory;
mod model;
mod offloads;
mod queues;
mod records;
mod start;

use std::path::Path;

use accel::Bundle;

use crate::cli::CheckConfigArgs;
use crate::exit::{Failure, print};
use crate::log;
use config::Config;
use dataplane::bundle::{check_labels, find_bundle, open_bundle};
use dataplane::devices::look_at_devices;
use dataplane::placement::Cores;
use finding::{Finding, Level, Report};
use machine::Machine;

/// Checks configuration and bundle, and that `fenxi run` could start with them here; then prints who hands what to whom,
/// and who runs where, or, with `--deep`, what the machine lacks.
///
/// # Errors
/// What `fenxi run` would refuse before it is ready, but for devices other than the CPU, which only `--deep` opens; with
/// `--config-only`, what is wrong on any machine; with `--deep`, any problem of this one.
pub fn check(args: &CheckConfigArgs) -> Result<(), Failure> {
    let config = args.config.of_service().load()?.config;
    let is_plain = !args.deep && !args.config_only;
    if is_plain {
        log::look(&config.log)?;
    }
    let dir = find_bundle(&config, None)?;
    if is_plain {
        Cores::of(&config).check()?;
    }
    let bundle = open_bundle(&config, &dir)?;
    check_labels(&config, &bundle)?;
    if is_plain {
        let machine = Machine::here();
        let is_running = control::service(&machine, &config.control).is_some();
        start::look(&machine, &config, &bundle, is_running)?;
        look_at_devices(&config, &bundle)?;
    }
    if !args.deep {
        return print(&draw::page(&config, &bundle));
    }
    let report = Report(look(args, &config, &dir, &bundle));
    print(&if args.json {
        report.to_json()
    } else {
        report.page()
    })?;
    report.failure().map_or(Ok(()), Err)
}

/// Everything that is looked at. Nothing is changed, bound or joined, so that a fenxi that runs is not disturbed.
fn look(args: &CheckConfigArgs, config: &Config, dir: &Path, bundle: &Bundle) -> Vec<Finding> {
    let machine = Machine::here();
    let cores = Cores::of(config);
    let service = control::service(&machine, &config.control);
    let mut findings = interfaces::look(&machine, config);
    for name in interfaces::present(config) {
        findings.extend(offloads::look(name, config.io.mode, config.io.promiscuous));
        findings.extend(queues::look(&machine, name, config));
        findings.extend(interrupts::look(&machine, name, &cores));
    }
    findings.extend(queues::backlog(&machine));
    findings.extend(cores::look(&machine, config, &cores, service));
    findings.extend(memory::look(&machine, config, bundle, service));
    findings.extend(capabilities::look(&machine, config.io.mode));
    findings.extend(marks::look(&machine, config, bundle));
    findings.extend(control::look(&machine, &config.control));
    findings.extend(records::look(&machine, &config.records));
    findings.extend(model::look(args, config, dir));
    findings.extend(clock::look(&machine));
    findings.extend(start(
        &machine,
        config,
        bundle,
        service.is_some(),
        &findings,
    ));
    findings
}

/// What else would keep a run from starting; not said again where a problem was found that may be the same.
fn start(
    machine: &Machine,
    config: &Config,
    bundle: &Bundle,
    is_running: bool,
    findings: &[Finding],
) -> Option<Finding> {
    if findings
        .iter()
        .any(|finding| finding.level == Level::Problem)
    {
        return None;
    }
    let look = || {
        log::look(&config.log)?;
        Cores::of(config).check()?;
        start::look(machine, config, bundle, is_running)
    };
    let failure = look().err()?;
    Some(Finding::problem("start", "", failure.to_string()))
}
