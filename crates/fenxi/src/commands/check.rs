//! `fenxi check`: validates a configuration and says what it does; with `--deep`, also draws its
//! pipeline and diagnoses the machine.

mod capabilities;
mod control;
mod cores;
mod draw;
mod finding;
mod goals;
mod interfaces;
mod marks;
mod memory;
mod mirror;
mod model;
mod port;
mod queues;
mod records;
mod rules;
mod ruleset;
mod tasks;

use accel::Bundle;
use flowmgr::{Effect, SeriesShare};

use crate::cli::CheckConfigArgs;
use crate::control::Sockets;
use crate::exit::{Failure, print};
use crate::log;
use crate::proc as machine;
use crate::rules::{Rules, Traffic};
use crate::run::{pair, ports};
use crate::service_unit;
use crate::sinks;
use config::Config;
use dataplane::devices::look_at_devices;
use dataplane::inline::{self, Wants};
use dataplane::label_map::{LabelMap, check_labels};
use dataplane::pipelines::{FlowOptions, PacketSide};
use dataplane::placement::Cores;
use dataplane::task_check::check_tasks;
use dataplane::tasks::OpenTask;
use finding::{Finding, Level, Report};
use machine::Machine;

/// Checks the configuration and the bundle, and that `fenxi run` can start with them on this
/// machine. Then prints what the run does and, with `--deep`, the pipeline, its threads and the
/// findings about the machine.
///
/// # Errors
/// Whatever `fenxi run` would refuse before it is ready, except devices other than the CPU, which
/// only `--deep` opens. With `--config-only`: errors that do not depend on the machine. With
/// `--deep`: any problem of this machine.
pub fn check(args: &CheckConfigArgs) -> Result<(), Failure> {
    let sources = args.live.sources([])?;
    let unit = sources.file().and_then(service_unit::of_file);
    let machine = Machine::with_service(unit.as_deref().unwrap_or(service_unit::UNIT));
    let memory = crate::memory::total(&machine).filter(|_| !args.config_only);
    let sources = sources.within(memory);
    let config = sources.load()?.config;
    // With other values this is not the service's configuration.
    let is_of_service =
        unit.is_some() && args.live.mode.is_none() && args.live.config.sets.is_empty();
    let is_plain = !args.deep && !args.config_only;
    if is_plain {
        log::probe(&config.log)?;
        Cores::from_config(&config).check()?;
    }
    let mut tasks = OpenTask::open_all(&config, None)?;
    let config = OpenTask::with_devices(config, &tasks);
    let config = inline::choose(&config, &mut tasks, Wants::Quick)?;
    let wanted = ports::wanted(&config, &tasks, SeriesShare::new(config.records.series));
    ports::note_kernel(&wanted, &mut tasks);
    let bundle = &tasks[0].bundle;
    let sinks_act = sinks::places(&config).next().is_some();
    let map = check_labels(&config, bundle, sinks_act)?;
    let bundles: Vec<Bundle> = tasks.iter().map(|task| task.bundle.clone()).collect();
    check_tasks(&config, &bundles)?;
    let labels = OpenTask::all_labels(&tasks);
    sinks::check_labels(&config, &labels)?;
    let rules = Rules::load(&config, &labels, Traffic::Live)?;
    if is_plain {
        let is_running = control::service(&machine, &config.control).is_some();
        probe(&config, &tasks, is_running)?;
        if is_of_service {
            capabilities::check_unit(&machine, &config)?;
        }
        for task in &tasks {
            look_at_devices(&task.config, &task.bundle)?;
        }
    }
    let rows = tasks::rows(&config, &bundles, &tasks);
    let is_measured = args.deep && !args.config_only;
    let mut findings = match is_measured {
        true => deep(args, &machine, is_of_service, &config, &tasks, &wanted, &map),
        false => goals::findings(&tasks, None),
    };
    findings.extend(tasks::missing_rules(&config, &rules));
    findings.extend(idle(&rules));
    let page = draw::page(&config, &bundles, &map, &rows, args.deep);
    if !is_measured && !args.json {
        let verdict = match is_plain {
            true => "ok, would start\n\n",
            false => "ok, the configuration is valid\n\n",
        };
        return print(&(verdict.to_owned() + &page + &finding::lines(&findings)));
    }
    let report = Report(findings);
    print(&match args.json {
        true => report.to_json(&rows),
        false => page + "\n" + &report.page(),
    })?;
    report.failure().map_or(Ok(()), Err)
}

/// Rules without an effect in the mode of the run.
fn idle(rules: &Rules) -> Option<Finding> {
    let cause = rules.idle()?;
    Some(Finding::warning("rule", "", cause))
}

/// All findings of `--deep`. Nothing is changed, bound or joined, so a running instance is not
/// disturbed.
fn deep(
    args: &CheckConfigArgs,
    machine: &Machine,
    is_of_service: bool,
    config: &Config,
    tasks: &[OpenTask],
    wanted: &ports::Wanted,
    map: &LabelMap,
) -> Vec<Finding> {
    let cores = Cores::from_config(config);
    let service = control::service(machine, &config.control);
    let mut findings = interfaces::findings(machine, config);
    findings.extend(mirror::findings(machine, config));
    for name in interfaces::present(config) {
        findings.extend(queues::offloads(name, config.io.mode, config.io.promiscuous));
        findings.extend(queues::findings(machine, name, config));
        findings.extend(cores::interrupts(machine, name, &cores));
    }
    findings.extend(queues::backlog(machine));
    findings.extend(cores::findings(machine, config, &cores, service));
    findings.extend(memory::findings(machine, config, tasks, service));
    findings.extend(capabilities::findings(machine, config, is_of_service));
    findings.extend(port::findings(machine, config, wanted));
    findings.extend(marks::findings(machine, config, tasks, wanted, map));
    findings.extend(marks::kernel_parts(config));
    findings.extend(control::findings(machine, &config.control));
    findings.extend(records::findings(machine, &config.records));
    findings.extend(records::of_servers(machine, &config.servers));
    let history = config.section::<crate::history::Keys>().path;
    findings.extend(records::of_history(machine, history.as_deref()));
    findings.extend(records::collectors(machine, config));
    let mut measured = goals::Measured::new();
    for (number, task) in tasks.iter().enumerate() {
        let (found, profiles) = model::findings(args, &task.config, task.bundle.dir());
        findings.extend(found);
        measured.extend(profiles.into_iter().map(|(device, profile)| ((number, device), profile)));
    }
    findings.extend(goals::findings(tasks, Some(&measured)));
    findings.extend(cores::clock_source(machine));
    findings.extend(start(config, tasks, service.is_some(), &findings));
    findings
}

/// Any other reason why a run cannot start. Skipped if there already is a problem, which may be the
/// same.
fn start(
    config: &Config,
    tasks: &[OpenTask],
    is_running: bool,
    findings: &[Finding],
) -> Option<Finding> {
    if findings.iter().any(|finding| finding.level == Level::Problem) {
        return None;
    }
    let start = || {
        log::probe(&config.log)?;
        Cores::from_config(config).check()?;
        probe(config, tasks, is_running)
    };
    let failure = start().err()?;
    Some(Finding::problem("start", "", failure.to_string()))
}

/// Whether `fenxi run` can start on this machine, but for the devices, found without starting it.
///
/// It takes the steps of [`crate::run::run`], in its order. Each is a function next to the one
/// that `run` calls and shares its checks and messages, without lasting effect: no interface is
/// watched, no socket listens, no file is created. So `fenxi check` and `fenxi run` refuse the same
/// configurations with the same messages; a test compares them. `is_running`: an instance runs with
/// this configuration, so its sockets and record file are taken until it is restarted.
fn probe(config: &Config, tasks: &[OpenTask], is_running: bool) -> Result<(), Failure> {
    let options = FlowOptions {
        effect: Effect::Arrival,
        record_series: flowmgr::SeriesShare::new(config.records.series),
    };
    PacketSide::build(config, tasks, options)?;
    ports::probe(config)?;
    if !is_running {
        // Released at once.
        drop(pair::hold(&config.io)?);
        Sockets::probe(&config.control)?;
    }
    sinks::KINDS.iter().try_for_each(|kind| kind.probe(config, &|_| is_running))
}
