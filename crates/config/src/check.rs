//! From settings to the checked form, and the rules between keys.
//!
//! Values arrive in the range their key declares and are stored one by one, so what is left to refuse are combinations:
//! each message names the keys with their values and where these were set. A rule is skipped when one of its keys was
//! refused already.

use packetio::Backend;

use crate::checked::{Accel, Capture, Config, HttpPlace, IoMode, MarkAs, MarkMapping};
use crate::draft::Draft;
use crate::keys::KeyId;
use crate::layers::Settings;

mod devices;
mod marks;
mod nft_sets;
mod tasks;

use devices::DeviceTables;

/// Flows of a bucket of the flow table.
const BUCKET_FLOWS: usize = 8;

/// The checked form, if nothing is wrong. Each problem is pushed as one line.
pub fn check(settings: &Settings, problems: &mut Vec<String>) -> Option<Config> {
    let before = problems.len();
    let read = Reader { settings };
    let mut draft = store(&read, problems);
    let asked = tasks::read(&read, &draft, problems);
    let first = asked.first()?;
    first.over_sections(&mut draft);
    problems.extend(marks::without_effect(first, &draft.mark));
    settle(&read, &mut draft);
    problems.extend(marks::of_sections(first, &draft.mark));
    problems.extend(marks::of_tasks(&asked, &draft.mark));
    let devices = DeviceTables::check(&settings.devices, problems);
    let nft_sets = nft_sets::check(&settings.nft_sets, problems);
    let tasks = tasks::checked(asked, &draft, &devices, problems);
    let first = tasks.first()?.clone();
    let config = Config {
        analytics: first.batching,
        cache: first.cache,
        accel: Accel {
            devices: first.devices,
            library: draft.accel.library,
            profiles: draft.accel.profiles,
        },
        model: crate::checked::Model {
            path: first.model,
            ..draft.model
        },
        tasks,
        io: draft.io,
        flow: draft.flow,
        tag: draft.tag,
        behaviour: draft.behaviour,
        mark: draft.mark,
        connlabel: draft.connlabel,
        nft_sets,
        ring: draft.ring,
        pipeline: draft.pipeline,
        host_networks: draft.host_networks,
        policy: draft.policy,
        records: draft.records,
        ipfix: draft.ipfix,
        kafka: draft.kafka,
        control: draft.control,
        sandbox: draft.sandbox,
        log: draft.log,
    };
    combinations(&config, draft.http_exposed, &read, problems);
    (problems.len() == before).then_some(config)
}

/// Stores every value in its place.
fn store(read: &Reader<'_>, problems: &mut Vec<String>) -> Draft {
    let mut draft = Draft::default();
    for &id in KeyId::ALL {
        let setting = read.settings.setting(id);
        if let Err(why) = id.store(&mut draft, setting)
            && !setting.refused
        {
            problems.push(format!("{}: {why}", read.named(id)));
        }
    }
    draft
}

/// Works out what the user left open.
fn settle(read: &Reader<'_>, draft: &mut Draft) {
    let flow = &mut draft.flow;
    flow.k_origin = read.settings.setting(KeyId::FlowK).origin.clone();
    draft.io.capture_origin = read.settings.setting(KeyId::IoCapture).origin.clone();
    if flow.buckets == 0 {
        flow.buckets = flow
            .max_flows
            .div_ceil(BUCKET_FLOWS / 2)
            .next_power_of_two();
    }
    if draft.mark.holds == MarkAs::Dscp {
        let rows = draft.tag.dscp.iter();
        let marks = rows.map(|row| MarkMapping {
            label: row.label.clone(),
            mark: policy::Mark::of_dscp(row.dscp).bits,
            required: row.required,
            origin: row.origin.clone(),
        });
        draft.mark.class = marks.collect();
    }
    draft.records.rotate = (draft.rotate.bytes > 0).then_some(draft.rotate);
}

/// The rules between keys that no task has of its own.
fn combinations(
    config: &Config,
    http_exposed: bool,
    read: &Reader<'_>,
    problems: &mut Vec<String>,
) {
    let mut rule = |keys: &[KeyId], broken: bool, why: &str| {
        if broken && keys.iter().all(|id| !read.settings.setting(*id).refused) {
            let named: Vec<_> = keys.iter().map(|id| read.named(*id)).collect();
            problems.push(format!("{}: {why}", named.join(" with ")));
        }
    };
    rule(
        &[KeyId::FlowBuckets, KeyId::FlowMaxFlows],
        config.flow.buckets * BUCKET_FLOWS < config.flow.max_flows,
        "impossible combination: a bucket has 8 flows, so max_flows is at most 8 times buckets",
    );
    rule(
        &[KeyId::MarkBehaviour, KeyId::BehaviourEnabled],
        !config.mark.behaviour.is_empty() && !config.behaviour.enabled,
        "no effect: flows have no behaviour; leave one of the two out",
    );
    rule(
        &[KeyId::IoMode, KeyId::IoInterfaces],
        config.io.mode == IoMode::Inline && config.io.interfaces.len() != 2,
        "impossible combination: inline needs exactly two interfaces",
    );
    rule(
        &[KeyId::IoCapture, KeyId::IoMode],
        config.io.mode == IoMode::Inline && config.io.capture == Capture::First,
        "impossible combination: inline forwards every packet itself; use mode tap or mark, or io.capture = \"all\"",
    );
    rule(
        &[KeyId::IoCapture, KeyId::IoBackend],
        config.io.capture == Capture::First && config.io.backend != Backend::AfPacket,
        "impossible combination: this backend hands out every packet; set io.backend = \"af_packet\", or io.capture = \"all\"",
    );
    rule(
        &[KeyId::IoBackend, KeyId::IoMode],
        config.io.mode == IoMode::Mark && config.io.backend.takes_frames(),
        "impossible combination: this backend takes frames away from the kernel, which forwards them in mode mark; set \
         io.backend = \"af_packet\"",
    );
    rule(
        &[KeyId::ConnlabelClass, KeyId::IoMode],
        config.io.mode == IoMode::Inline && !config.connlabel.class.is_empty(),
        "impossible combination: inline forwards past the kernel, which has no connections to label; use mode mark, or leave \
         the table out",
    );
    let mut names = config.io.interfaces.clone();
    names.sort_unstable();
    names.dedup();
    rule(
        &[KeyId::IoInterfaces],
        names.len() != config.io.interfaces.len(),
        "each interface must be named only once",
    );
    let mirror = config.policy.mirror.as_ref();
    rule(
        &[KeyId::PolicyMirror, KeyId::IoInterfaces],
        mirror.is_some_and(|mirror| config.io.interfaces.contains(mirror)),
        "impossible combination: copies would go out among the packets that are forwarded; name another interface",
    );
    let exposed =
        matches!(config.control.http, Some(HttpPlace::Tcp(address)) if !address.ip().is_loopback());
    rule(
        &[KeyId::ControlHttp],
        exposed && !http_exposed,
        "other machines could reach this address; use 127.0.0.1, or set control.http_exposed = true",
    );
    let threads = config.thread_count();
    let cores = config.pipeline.cores.len();
    rule(
        &[
            KeyId::PipelineCores,
            KeyId::PipelineLayout,
            KeyId::PipelineInstances,
        ],
        cores > 0 && cores < threads,
        &format!("too few cores: {threads} threads want one each; name that many, or none"),
    );
}

/// The settings, and how messages name them.
struct Reader<'a> {
    settings: &'a Settings,
}

impl Reader<'_> {
    /// The key with its value and origin.
    fn named(&self, id: KeyId) -> String {
        let setting = self.settings.setting(id);
        let (path, value, origin) = (id.key().path, &setting.value, &setting.origin);
        format!("{path} = {value} ({origin})")
    }
}
