//! The pipeline of a configuration, drawn as text.

use std::collections::BTreeMap;
use std::time::Duration;

use accel::Bundle;
use analytics::Policy;
use cring::Unit;
use flowmgr::table_bytes;

use config::Config;
use config::checked::{self, Capture, DeviceThread, IoMode, MarkAs};
use config::layout::SessionPlace;
use config::origin::Origin;
use dataplane::bundle::{servers, task_config};
use dataplane::label_map::{LabelEffect, LabelMap};
use dataplane::placement::{Cores, Role, Thread};

use super::tasks::{self, TaskRow};
use crate::escape::escape;

/// What is watched, the tasks, and what is done about each label. `is_deep`: also the drawing of
/// the pipeline with the sizes of its parts, and the list of its threads.
pub fn page(
    config: &Config,
    bundles: &[Bundle],
    map: &LabelMap,
    tasks: &[TaskRow],
    is_deep: bool,
) -> String {
    let Some(bundle) = bundles.first() else {
        return String::new();
    };
    let model =
        format!("{} {} ({} classes)", bundle.name(), bundle.version(), bundle.labels().len());
    let series: Vec<_> = bundles.iter().map(task_config).collect();
    let (bounds, servers) = (config.behaviour.in_use(), servers(config, bundles));
    let (flow, samples) = (&config.flow, config.learn.samples());
    let (max_flows, buckets) = (flow.max_flows, flow.buckets);
    let measured = config.measure.in_use();
    let bytes = table_bytes(max_flows, buckets, &series, bounds, servers, samples, measured);
    let effects = effects(config, map, "") + &effects_of_others(config, bundles);
    match is_deep {
        true => {
            draw(config, (bundle, bytes), map, &model)
                + &tasks::labelled(tasks)
                + &tasks::graph(tasks, true)
                + &threads(config)
                + &effects
        }
        false => {
            brief(config, (bundle, bytes), map, &model) + &tasks::graph(tasks, false) + &effects
        }
    }
}

/// The pipeline in lines for an operator.
fn brief(
    config: &Config,
    (bundle, bytes): (&Bundle, usize),
    map: &LabelMap,
    model: &str,
) -> String {
    let interfaces = interfaces(config);
    let (mode, first) = (config.io.mode.name(), first_packets(config));
    let (flows, mib) = (config.flow.max_flows, bytes.div_ceil(1 << 20));
    let tables = match config.pipeline.layout.flow_managers * config.pipeline.instances {
        1 => String::new(),
        tables => format!(" in each of {tables} tables"),
    };
    let (effect, depths, elements) = (effect(config, map), depths(bundle), elements(bundle));
    let waits = match config.pipeline.layout.is_inline() {
        true => "with the packet that decides".to_owned(),
        false => waits(config) + &by_mode(config.tasks.first().map(|task| &task.policy_origin)),
    };
    format!(
        "watches   {interfaces}; mode {mode}{first}
flows     at most {flows}, {mib} MiB{tables}
model     {model}
asked     {depths} {elements}
labels    {waits}; {effect}
"
    )
}

fn interfaces(config: &Config) -> String {
    match config.io.interfaces.as_slice() {
        [] => "no interface".to_owned(),
        interfaces => interfaces.join(", "),
    }
}

/// What is done about labels of the tasks behind the first, where anything is.
fn effects_of_others(config: &Config, bundles: &[Bundle]) -> String {
    let others = bundles.iter().enumerate().skip(1);
    let of = |(number, bundle): (usize, &Bundle)| {
        let own = config.of_task(number);
        let map = LabelMap::from_config(&own, bundle).ok()?;
        let (without, labels) = map.unmapped();
        let name = own.tasks.first().map(|task| task.name.as_str())?;
        (without.len() < labels).then(|| effects(&own, &map, &format!(" of {name}")))
    };
    others.filter_map(of).collect()
}

fn draw(config: &Config, (bundle, bytes): (&Bundle, usize), map: &LabelMap, model: &str) -> String {
    let flow = &config.flow;
    let layout = &config.pipeline.layout;
    let devices = config.accel.devices.iter();
    let devices: Vec<&str> = devices.map(|device| device.name.as_str()).collect();
    let instances = match config.pipeline.instances {
        1 => "1 instance".to_owned(),
        instances => format!("{instances} instances, each like this"),
    };
    let rings = match layout.rings().len() {
        1 => String::new(),
        rings => format!("{rings} rings of "),
    };
    let port = format!("{}, bursts of {}", interfaces(config), config.io.burst);
    let slots = format!("; {rings}{} slots", config.ring.slots);
    let (flow_managers, first) =
        (several(layout.flow_managers, "flow manager"), first_packets(config));
    let mib = bytes.div_ceil(1 << 20);
    let each = if layout.flow_managers > 1 { " each" } else { "" };
    let (depths, elements, effect) = (depths(bundle), elements(bundle), effect(config, map));
    let (max_flows, buckets) = (flow.max_flows, flow.buckets);
    let table = format!("{max_flows} flows, {buckets} buckets, {mib} MiB{each}; labels: {effect}");
    let devices = devices.join(", ");
    if layout.is_inline() {
        return format!(
            "pipeline {layout}, {instances}

  port                    {port}{first}
   │
  {flow_managers:<23} {table}
                          {depths} {elements}: inline, {devices}: {model}
"
        );
    }
    format!(
        "pipeline {layout}, {instances}

  port                    {port}{first}
   │
  {flow_managers:<23} {table}
   │        ▲
   │ ring   │ labels      {depths} {elements}{slots}
   ▼        │
  {analytics_managers:<23} {policy}; cache: {cache}
   │        ▲
   ▼        │
  {device:<23} {devices}: {model}
",
        analytics_managers = several(layout.analytics_managers, "analytics manager"),
        device = several(layout.devices, "device"),
        policy =
            parameters(config) + &by_mode(config.tasks.first().map(|task| &task.policy_origin)),
        cache = cache(config, bundle)
    )
}

fn first_packets(config: &Config) -> String {
    let io = &config.io;
    match io.capture {
        Capture::First | Capture::Kernel => {
            format!("; first packets of each flow only{}", by_mode(Some(&io.capture_origin)))
        }
        Capture::All => String::new(),
    }
}

/// That a value is the default of the mode, where it is.
fn by_mode(origin: Option<&Origin>) -> String {
    match origin {
        Some(origin @ Origin::Mode(_)) => format!(" ({origin})"),
        _ => String::new(),
    }
}

/// After how many elements the model is asked, and whether ports name flows before that.
fn depths(bundle: &Bundle) -> String {
    let by_port = match bundle.is_ports_first() {
        true => "by port at once, or ",
        false => "",
    };
    let depths = bundle.depths().iter().map(|it| it.elements.to_string());
    format!("{by_port}after {}", depths.collect::<Vec<_>>().join(", "))
}

fn elements(bundle: &Bundle) -> &'static str {
    match task_config(bundle).unit {
        Unit::Data => "packets with payload",
        Unit::Packet => "packets",
    }
}

fn cache(config: &Config, bundle: &Bundle) -> String {
    match &config.cache {
        Some(cache) => {
            let (prefix, k, entries) = (cache.prefix, bundle.k(), cache.entries);
            format!("prefix {prefix} of {k}, {entries} entries, while it saves time")
        }
        None => "off".to_owned(),
    }
}

/// How many labels have an effect, and which.
fn effect(config: &Config, map: &LabelMap) -> String {
    let (without, labels) = map.unmapped();
    let mapped = labels - without.len();
    match map.effect() {
        LabelEffect::Mark => format!("{mapped} of {labels} set a mark"),
        LabelEffect::Dscp => format!("{mapped} of {labels} set a DSCP"),
        LabelEffect::Nothing => match config.io.mode {
            IoMode::Inline => "recorded only (tag.mode is off)".to_owned(),
            mode => format!("recorded only (mode {})", mode.name()),
        },
    }
}

/// A line per value with the labels that have it, in the order of the values; then the labels that
/// have none.
fn effects(config: &Config, map: &LabelMap, whose: &str) -> String {
    let mut by_value: BTreeMap<u32, (String, Vec<&str>)> = BTreeMap::new();
    for (label, action) in map.rows() {
        let shown = match (map.effect(), action.mark, action.dscp) {
            (LabelEffect::Mark, Some(mark), _) => (mark.bits, shown_mark(config, mark)),
            (LabelEffect::Dscp, _, Some(dscp)) => (dscp.code_point().into(), dscp.to_string()),
            _ => continue,
        };
        let row = by_value.entry(shown.0).or_insert((shown.1, Vec::new()));
        row.1.push(&label.name);
    }
    let title = match map.effect() {
        LabelEffect::Nothing => return String::new(),
        LabelEffect::Dscp => "DSCP of packets".to_owned(),
        LabelEffect::Mark => format!("marks of connections under the mask {:#x}", config.mark.mask),
    };
    let mut page = format!("\nlabels{whose} ({title})\n");
    let (without, _) = map.unmapped();
    let none = (!without.is_empty()).then_some(("none".to_owned(), without));
    for (value, labels) in by_value.into_values().chain(none) {
        page += &format!("  {value:<15} {}\n", escape(&labels.join(", ")));
    }
    page
}

/// The bits, and the DSCP in them where they hold one.
fn shown_mark(config: &Config, mark: policy::Mark) -> String {
    match (config.mark.holds, mark.dscp()) {
        (MarkAs::Dscp, Some(dscp)) => format!("{:#x} ({dscp})", mark.bits),
        _ => format!("{:#x}", mark.bits),
    }
}

fn several(count: usize, what: &str) -> String {
    match count {
        1 => what.to_owned(),
        count => format!("{count} {what}s"),
    }
}

/// One line per thread: its core, and which threads it passes work to.
fn threads(config: &Config) -> String {
    let cores = Cores::from_config(config);
    let mut page = format!("\nthreads ({})\n", cores.reason);
    for (thread, core) in cores.iter() {
        let core = core.map_or("-".to_owned(), |core| format!("core {core}"));
        let work = work(config, thread);
        page += &format!("  {:<15} {core:<9} {work}\n", thread.to_string());
    }
    page
}

fn work(config: &Config, thread: &Thread) -> String {
    let (layout, instance) = (&config.pipeline.layout, thread.instance);
    let of = |role| Thread { instance, role }.to_string();
    let device = |session: &SessionPlace| &config.accel.devices[session.device];
    let sessions = layout.sessions();
    let parts: Vec<String> = match thread.role {
        Role::Flow(i) => {
            let rings = layout.rings().into_iter();
            let own = rings.filter(|ring| ring.flow_manager == i);
            own.map(|ring| format!("ring to {}", of(Role::Analytics(ring.analytics_manager))))
                .collect()
        }
        Role::Analytics(i) => {
            let sessions = sessions.iter().enumerate();
            let own = sessions.filter(|(_, session)| session.analytics_manager == i);
            own.map(|(at, session)| match device(session).thread {
                DeviceThread::Own => format!("batches to {}", of(Role::Session(at))),
                DeviceThread::Shared => format!("runs {}", named(device(session))),
            })
            .collect()
        }
        Role::Session(i) => vec![format!("runs {}", named(device(&sessions[i])))],
    };
    parts.join(", ")
}

/// The device's name, followed by its provider if that differs.
fn named(device: &checked::Device) -> String {
    let (name, provider) = (&device.name, device.provider.name);
    match name == provider {
        true => name.clone(),
        false => format!("{name} ({provider})"),
    }
}

fn waits(config: &Config) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    match config.analytics.policy() {
        Policy::None => "a label waits until the device is idle".to_owned(),
        Policy::Max => "a label waits until a batch is full".to_owned(),
        Policy::Slo { latency_goal, .. } | Policy::OnOff { latency_goal, .. } => {
            format!("99 of 100 labels within {} ms", ms(latency_goal))
        }
        Policy::Timeout { timeout } => {
            format!("a label waits up to {} ms for a batch", ms(timeout))
        }
        Policy::CarryOver { timeout, .. } if takes_any_size(config) => {
            format!(
                "a label waits up to {} ms for a batch; any size fits, so nothing is carried \
                over",
                ms(timeout)
            )
        }
        Policy::CarryOver { timeout, max_wait, .. } => {
            format!("a label waits {} ms for a batch, {} ms at most", ms(timeout), ms(max_wait))
        }
    }
}

/// Whether batches need no padding, so that carry-over has nothing to save.
fn takes_any_size(config: &Config) -> bool {
    config.accel.devices.iter().all(|device| !device.fixed_sizes)
}

fn parameters(config: &Config) -> String {
    match config.analytics.policy() {
        Policy::None => "none: fires when the device is idle".to_owned(),
        Policy::Max => "max: fires when as many wait as the device takes".to_owned(),
        Policy::Slo { latency_goal, delta } => {
            format!("slo, 99 of 100 labels within {latency_goal:?}, δ = {delta}")
        }
        Policy::OnOff { latency_goal, delta } => {
            format!("on-off, 99 of 100 labels within {latency_goal:?}, δ = {delta}")
        }
        Policy::Timeout { timeout } => format!("timeout, T = {timeout:?}"),
        Policy::CarryOver { timeout, phi, max_wait } => {
            format!("carry-over, T = {timeout:?}, Φ = {phi}, max wait {max_wait:?}")
        }
    }
}
