//! From settings to the checked form, and the rules between keys.
//!
//! Values arrive in the range their key declares and are stored one by one, so what is left to
//! refuse are combinations: each message names the keys with their values and where these were set.
//! A rule is skipped when one of its keys was refused already.

use crate::checked::{
    Accel, AccelKeys, Batching, Behaviours, Cache, Capture, Config, Control, Flow, Hosts,
    HttpPlace, Io, IoMode, Learn, Log, Mapping, Mark, MarkAs, Measure, Model, Pipeline, Policy,
    Process, Records, Ring, SECTIONS, Servers, Tag, of_backends,
};
use crate::settings::Settings;

mod devices;
mod marks;
mod tasks;

use devices::DeviceTables;

/// Flows of a bucket of the flow table.
const BUCKET_FLOWS: usize = 8;

/// What tasks take from the sections.
pub(crate) struct Common {
    pub flow: Flow,
    pub mark: Mark,
    pub batching: Batching,
    pub cache: Cache,
    pub accel: AccelKeys,
    pub layout: crate::layout::Layout,
    pub interfaces: Vec<String>,
}

/// The checked form, if nothing is wrong. Each problem is pushed as one line.
pub fn check(settings: &Settings, problems: &mut Vec<String>) -> Option<Config> {
    let before = problems.len();
    let io = Io {
        capture_origin: settings.setting("io.capture").origin.clone(),
        own: of_backends(settings, problems),
        ..settings.read(problems)
    };
    let mut tag: Tag = settings.read(problems);
    let mut model: Model = settings.read(problems);
    let pipeline: Pipeline = settings.read(problems);
    let mut common = Common {
        flow: flow(settings, problems),
        mark: settings.read(problems),
        batching: settings.read(problems),
        cache: settings.read(problems),
        accel: settings.read(problems),
        layout: pipeline.layout,
        interfaces: io.interfaces.clone(),
    };
    let asked = tasks::read(settings, problems);
    let first = asked.first()?;
    // What the first task says of its labels goes over the sections.
    model.min_confidence = first.keys.min_confidence;
    tag.dscp = first.keys.dscp.clone();
    common.mark.class = first.keys.mark.clone();
    common.mark.mask = first.keys.mark_mask;
    problems.extend(marks::without_effect(first, &common.mark));
    marks_of_dscp(&tag, &mut common.mark);
    problems.extend(marks::of_sections(first, &common.mark));
    problems.extend(marks::of_tasks(&asked, &common.mark));
    let devices = DeviceTables::check(settings, problems);
    let tasks = tasks::checked(asked, &common, &devices, problems);
    let first = tasks.first()?.clone();
    let hosts: Hosts = settings.read(problems);
    task_exists(settings, "hosts.task", problems);
    let process: Process = settings.read(problems);
    let is_other = |name: &str| SECTIONS.iter().all(|section| section.name != name);
    let others = settings.tables.iter();
    let others = others.filter(|table| is_other(table.section.name));
    let config = Config {
        analytics: first.batching,
        cache: first.cache,
        accel: Accel {
            devices: first.devices,
            library: common.accel.library,
            profiles: common.accel.profiles,
        },
        model: Model { path: first.model, ..model },
        tasks,
        io,
        flow: common.flow,
        tag,
        behaviour: settings.read::<Behaviours>(problems),
        servers: settings.read::<Servers>(problems),
        measure: settings.read::<Measure>(problems),
        mark: common.mark,
        ring: settings.read::<Ring>(problems),
        pipeline,
        host_networks: hosts.networks,
        host_task: hosts.task,
        policy: settings.read::<Policy>(problems),
        records: settings.read::<Records>(problems),
        learn: settings.read::<Learn>(problems),
        control: settings.read::<Control>(problems),
        sandbox: process.sandbox,
        log: settings.read::<Log>(problems),
        others: others.cloned().collect(),
    };
    combinations(&config, settings, problems);
    let others = settings.sections.iter();
    for section in others.filter(|section| is_other(section.name)) {
        (section.check)(settings, problems);
    }
    (problems.len() == before).then_some(config)
}

/// Reports a key that names a task which there is not.
pub fn task_exists(settings: &Settings, path: &str, problems: &mut Vec<String>) {
    let (name, setting) = (settings.word(path), settings.setting(path));
    let tasks: Vec<&str> = settings.tables("task").map(|task| task.name.as_str()).collect();
    if name.is_empty() || tasks.contains(&name) {
        return;
    }
    let near = crate::nearest(name, tasks.iter().copied());
    let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
    let known = match tasks.is_empty() {
        true => "no task has a name".to_owned(),
        false => format!("there are {}", tasks.join(", ")),
    };
    let origin = &setting.origin;
    problems.push(format!("{origin}: {path} = \"{name}\": unknown task; {known}{near}"));
}

fn flow(settings: &Settings, problems: &mut Vec<String>) -> Flow {
    let mut flow: Flow = settings.read(problems);
    flow.k_origin = settings.setting("flow.k").origin.clone();
    flow.active_timeout = flow.active.replay;
    flow.half_open_timeout = flow.half_open.replay;
    flow.established_timeout = flow.established.replay;
    if flow.buckets == 0 {
        let half_full = flow.max_flows.div_ceil(BUCKET_FLOWS / 2);
        flow.buckets = half_full.next_power_of_two();
    }
    flow
}

/// Where marks hold the DSCP of a label, the table of DSCPs gives labels their bits.
fn marks_of_dscp(tag: &Tag, mark: &mut Mark) {
    if mark.holds == MarkAs::Dscp {
        let marks = tag.dscp.iter().map(|row| Mapping {
            label: row.label.clone(),
            value: policy::Mark::of_dscp(row.value).bits,
            required: row.required,
            origin: row.origin.clone(),
        });
        mark.class = marks.collect();
    }
}

/// The rules between keys that no task has of its own.
fn combinations(config: &Config, settings: &Settings, problems: &mut Vec<String>) {
    let mut rule = |paths: &[&str], broken, why: &str| settings.rule(paths, broken, why, problems);
    rule(
        &["flow.buckets", "flow.max_flows"],
        config.flow.buckets * BUCKET_FLOWS < config.flow.max_flows,
        "impossible combination: a bucket has 8 flows, so max_flows is at most 8 times buckets",
    );
    rule(
        &["mark.behaviour", "behaviour.enabled"],
        !config.mark.behaviour.is_empty() && !config.behaviour.enabled,
        "no effect: flows have no behaviour; leave one of the two out",
    );
    rule(
        &["io.mode", "io.interfaces"],
        config.io.mode == IoMode::Inline && config.io.interfaces.len() != 2,
        "impossible combination: inline needs exactly two interfaces",
    );
    rule(
        &["io.capture", "io.mode"],
        config.io.mode == IoMode::Inline && config.io.capture != Capture::All,
        "impossible combination: inline forwards every packet itself; use mode tap or mark, or \
         io.capture = \"all\"",
    );
    rule(
        &["io.capture", "io.backend"],
        config.io.capture != Capture::All && !config.io.backend.has_first_packets,
        "impossible combination: this backend hands out every packet; set io.backend = \
         \"af_packet\", or io.capture = \"all\"",
    );
    rule(
        &["tag.in_kernel", "io.mode", "io.capture"],
        config.tag.in_kernel
            && (config.io.mode != IoMode::Mark || config.io.capture != Capture::Kernel),
        "no effect: only a kernel that labels and forwards writes a DSCP; use mode mark and \
         io.capture = \"kernel\", or leave tag.in_kernel out",
    );
    rule(
        &["io.backend", "io.mode"],
        config.io.mode == IoMode::Mark && config.io.backend.takes_frames,
        "impossible combination: this backend takes frames away from the kernel, which forwards \
         them in mode mark; set io.backend = \"af_packet\"",
    );
    let mut names = config.io.interfaces.clone();
    names.sort_unstable();
    names.dedup();
    rule(
        &["io.interfaces"],
        names.len() != config.io.interfaces.len(),
        "each interface must be named only once",
    );
    let mirror = config.policy.mirror.as_ref();
    rule(
        &["policy.mirror", "io.interfaces"],
        mirror.is_some_and(|mirror| config.io.interfaces.contains(mirror)),
        "impossible combination: copies would go out among the packets that are forwarded; name \
         another interface",
    );
    let exposed =
        matches!(config.control.http, Some(HttpPlace::Tcp(address)) if !address.ip().is_loopback());
    rule(
        &["control.http"],
        exposed && !config.control.http_exposed,
        "other machines could reach this address; use 127.0.0.1, or set control.http_exposed = \
         true",
    );
    let threads = config.thread_count();
    let cores = config.pipeline.cores.len();
    rule(
        &["pipeline.cores", "pipeline.layout", "pipeline.instances"],
        cores > 0 && cores < threads,
        &format!("too few cores: {threads} threads want one each; name that many, or none"),
    );
}
