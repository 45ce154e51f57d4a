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

use std::path::Path;

use accel::Bundle;

use crate::cli::CheckConfigArgs;
use crate::config::Config;
use crate::exit::{Failure, print};
use crate::pipeline::threads::Cores;
use crate::pipeline::{dscp_by_class, find_bundle, open_bundle, thresholds};
use finding::{Finding, Report};
use machine::Machine;

/// Checks configuration and bundle, then prints who hands what to whom, and who runs where; or, if asked, what the machine
/// lacks.
///
/// # Errors
/// Whatever a run would refuse before its first packet, but for the library and the devices, which only `--deep` touches;
/// with `--deep`, any problem of the machine.
pub fn check(args: &CheckConfigArgs) -> Result<(), Failure> {
    let config = args.config.of_service().load()?.config;
    let dir = find_bundle(&config, None)?;
    let bundle = open_bundle(&config, &dir)?;
    dscp_by_class(&config, &bundle)?;
    thresholds(&config, &bundle)?;
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
    findings.extend(memory::look(&machine, config, service));
    findings.extend(capabilities::look(&machine, config.io.mode));
    findings.extend(marks::look(&machine, config, bundle));
    findings.extend(control::look(&machine, &config.control));
    findings.extend(records::look(&machine, &config.records));
    findings.extend(model::look(args, config, dir));
    findings.extend(clock::look(&machine));
    findings
}
