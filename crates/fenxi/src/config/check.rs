//! From settings to the checked form, and the rules between keys.
//!
//! Values arrive in the range their key declares, so what is left to refuse are combinations: each
//! message names the keys with their values and where these were set. A rule is skipped when one of
//! its keys was refused already.

use std::path::PathBuf;
use std::time::Duration;

use toml::Value;

use super::checked::{
    Accel, Analytics, BatchPolicy, Cache, ClassConfidence, Config, Control, DscpMapping, Flow,
    FlowHash, HttpPlace, Io, IoMode, Log, LogTo, Model, Pipeline, Records, Ring, Rotate, Tag,
};
use super::keys::{CLASS_CONFIDENCE, TAG_DSCP};
use super::layers::{self, Origin, Settings};
use crate::pipeline::layout::{Layout, PARTS_MAX};
use crate::pipeline::threads::threads_of;

mod devices;
mod mark;

/// `flow.active_timeout_s` of live traffic, where the user says nothing.
const ACTIVE_TIMEOUT_LIVE: Duration = Duration::from_secs(120);
/// SYNs are sent again after 1, 2, 4 and 8 s by common systems; these are still one flow.
const HALF_OPEN_TIMEOUT_LIVE: Duration = Duration::from_secs(10);
/// Push services and WebSockets send something every 30 minutes or more often.
const ESTABLISHED_TIMEOUT_LIVE: Duration = Duration::from_secs(2100);

/// The longest path of a Unix socket, in bytes: `sun_path` of `sockaddr_un`, less the NUL at its end.
const SOCKET_PATH_MAX: usize = 107;

/// Builds the checked form. It is only good for use when `problems` has not grown.
pub fn check(settings: &Settings, problems: &mut Vec<String>) -> Config {
    let read = Reader { settings };
    let layout = layout(&read, problems);
    let config = Config {
        io: io(&read),
        flow: flow(&read),
        tag: tag(&read),
        mark: mark::mark(&read, problems),
        ring: Ring {
            slots: read.size("ring.slots"),
        },
        analytics: analytics(&read),
        cache: cache(&read),
        pipeline: Pipeline {
            layout,
            instances: read.size("pipeline.instances"),
            cores: read.sizes("pipeline.cores"),
        },
        accel: Accel {
            devices: devices::devices(&read, &layout, problems),
            library: read.path("accel.library"),
        },
        model: model(&read),
        records: records(&read, problems),
        control: control(&read, problems),
        sandbox: read.bool("process.sandbox"),
        log: log(&read, problems),
    };
    combinations(&config, &read, problems);
    config
}

fn io(read: &Reader<'_>) -> Io {
    let bytes = |path| read.count(path) as u32;
    let names = read.list("io.interfaces").iter();
    Io {
        burst: read.size("io.burst"),
        mode: match read.text("io.mode") {
            "mark" => IoMode::Mark,
            "inline" => IoMode::Inline,
            _ => IoMode::Tap,
        },
        interfaces: names.filter_map(Value::as_str).map(str::to_owned).collect(),
        promiscuous: read.bool("io.promiscuous"),
        snap_length: bytes("io.snap_length"),
        block_bytes: bytes("io.block_bytes"),
        blocks: bytes("io.blocks"),
        block_timeout_ms: bytes("io.block_timeout_ms"),
        give_up_after: Duration::from_secs(read.count("io.give_up_s")),
    }
}

/// How often a lasting flow is recorded in a replay, and live.
fn timeouts(
    read: &Reader<'_>,
    key: &str,
    by_default: Duration,
) -> (Option<Duration>, Option<Duration>) {
    match read.value(key).as_integer() {
        Some(..=-1) => (None, Some(by_default)),
        _ => {
            let given = read.seconds(key);
            (given, given)
        }
    }
}

fn flow(read: &Reader<'_>) -> Flow {
    let max_flows = read.size("flow.max_flows");
    let buckets = match read.size("flow.buckets") {
        0 => max_flows.div_ceil(4).next_power_of_two(),
        given => given,
    };
    let (active_timeout, active_timeout_live) =
        timeouts(read, "flow.active_timeout_s", ACTIVE_TIMEOUT_LIVE);
    let (half_open_timeout, half_open_timeout_live) =
        timeouts(read, "flow.half_open_timeout_s", HALF_OPEN_TIMEOUT_LIVE);
    let (established_timeout, established_timeout_live) =
        timeouts(read, "flow.established_timeout_s", ESTABLISHED_TIMEOUT_LIVE);
    Flow {
        k: read.size("flow.k"),
        idle_timeout: read.seconds("flow.idle_timeout_s"),
        active_timeout,
        active_timeout_live,
        half_open_timeout,
        half_open_timeout_live,
        established_timeout,
        established_timeout_live,
        closed_timeout: Duration::from_secs(read.count("flow.closed_timeout_s")),
        end_on_fin_rst: read.bool("flow.end_on_fin_rst"),
        hash: match read.text("flow.hash") {
            "fenxi" => FlowHash::Fenxi,
            _ => FlowHash::Keyed,
        },
        hash_seed: Some(read.count("flow.hash_seed")).filter(|seed| *seed != 0),
        max_flows,
        buckets,
    }
}

fn tag(read: &Reader<'_>) -> Tag {
    let built_in = layers::read(&[], &[], &[], &mut Vec::new());
    let built_in = built_in.entries(TAG_DSCP);
    let mapping = |(label, entry): (&String, &layers::EntrySetting)| DscpMapping {
        label: label.clone(),
        dscp: size_of_value(&entry.value) as u8,
        required: built_in
            .get(label)
            .is_none_or(|known| known.value != entry.value),
        origin: entry.origin.clone(),
    };
    Tag {
        enabled: read.text("tag.mode") == "dscp",
        dscp: read
            .settings
            .entries(TAG_DSCP)
            .iter()
            .map(mapping)
            .collect(),
    }
}

fn analytics(read: &Reader<'_>) -> Analytics {
    Analytics {
        policy: match read.text("analytics.policy") {
            "timeout" => BatchPolicy::Timeout,
            "none" => BatchPolicy::None,
            "slo" => BatchPolicy::Slo {
                latency_goal: read.milliseconds("analytics.latency_goal_ms"),
                delta: read.float("analytics.slo_delta"),
            },
            _ => BatchPolicy::CarryOver,
        },
        timeout: read.milliseconds("analytics.timeout_ms"),
        phi: read.float("analytics.phi"),
        batch_sizes: read.sizes("analytics.batch_sizes"),
        max_wait: read.milliseconds("analytics.max_wait_ms"),
    }
}

fn cache(read: &Reader<'_>) -> Option<Cache> {
    let (prefix, entries) = (read.size("cache.prefix"), read.size("cache.entries"));
    (prefix > 0 && entries > 0).then(|| Cache {
        prefix,
        entries,
        audit: read.float("cache.audit"),
    })
}

fn model(read: &Reader<'_>) -> Model {
    let min_confidence = read.float("model.min_confidence") as f32;
    let entry = |(label, entry): (&String, &layers::EntrySetting)| ClassConfidence {
        label: label.clone(),
        confidence: entry.value.as_float().unwrap_or_default() as f32,
        origin: entry.origin.clone(),
    };
    let entries = read.settings.entries(CLASS_CONFIDENCE).iter();
    Model {
        path: read.path("model.path"),
        min_confidence: (min_confidence >= 0.0).then_some(min_confidence),
        class_confidence: entries.map(entry).collect(),
        open_timeout: Duration::from_secs_f64(read.float("model.open_timeout_s")),
    }
}

/// The layout; 1:1:1 where there is none to be had.
fn layout(read: &Reader<'_>, problems: &mut Vec<String>) -> Layout {
    const PATH: &str = "pipeline.layout";
    Layout::parse(read.text(PATH)).unwrap_or_else(|| {
        if !read.settings.setting(PATH).refused {
            problems.push(format!(
                "{}: expected a layout F:A:D of three numbers from 1 to {PARTS_MAX}, such as 1:1:1",
                read.named(PATH)
            ));
        }
        Layout {
            flow_managers: 1,
            analytics_managers: 1,
            devices: 1,
        }
    })
}

fn control(read: &Reader<'_>, problems: &mut Vec<String>) -> Control {
    const HTTP: &str = "control.http";
    let text = read.text(HTTP);
    let http = HttpPlace::parse(text, |path| read.origin(HTTP).resolve(path));
    if http.is_none() && !text.is_empty() {
        problems.push(format!(
            "{}: expected an address and a port such as 127.0.0.1:9469, or unix: and a path",
            read.named(HTTP)
        ));
    }
    if let Some(HttpPlace::Tcp(address)) = http
        && !address.ip().is_loopback()
        && !read.bool("control.http_exposed")
    {
        problems.push(format!(
            "{}: other machines could reach this address; take 127.0.0.1, or set control.http_exposed = true",
            read.named(HTTP)
        ));
    }
    let socket = read.path("control.socket");
    let unix = match &http {
        Some(HttpPlace::Unix(path)) => Some(path),
        _ => None,
    };
    for (key, path) in [(HTTP, unix), ("control.socket", socket.as_ref())] {
        let length = path.map_or(0, |path| path.as_os_str().len());
        if length > SOCKET_PATH_MAX {
            problems.push(format!(
                "{}: the path of a Unix socket has at most {SOCKET_PATH_MAX} bytes, and this one has {length}; name a \
                 shorter one",
                read.named(key)
            ));
        }
    }
    Control {
        http,
        socket,
        ready_without_interfaces: read.bool("control.ready_without_interfaces"),
    }
}

fn records(read: &Reader<'_>, problems: &mut Vec<String>) -> Records {
    const PATH: &str = "records.path";
    if read.text(PATH) == "-" {
        problems.push(format!(
            "{}: expected the path of a file; `fenxi run --flows -` writes to stdout",
            read.named(PATH)
        ));
    }
    let bytes = read.count("records.rotate_mib") << 20;
    let rotate = Rotate {
        bytes,
        files: read.size("records.rotate_files"),
    };
    Records {
        path: read.path(PATH),
        rotate: (bytes > 0).then_some(rotate),
        queue: read.size("records.queue"),
        drain_within: Duration::from_secs(read.count("records.drain_s")),
    }
}

fn log(read: &Reader<'_>, problems: &mut Vec<String>) -> Log {
    const LEVEL: &str = "log.level";
    let level = read.text(LEVEL).to_owned();
    if let Err(error) = crate::log::check_level(&level) {
        problems.push(format!("{}: {error}", read.named(LEVEL)));
    }
    let to = match read.text("log.to") {
        "journald" => LogTo::Journald,
        "stderr" => LogTo::Stderr,
        _ => LogTo::Auto,
    };
    Log { level, to }
}

/// The rules between keys.
fn combinations(config: &Config, read: &Reader<'_>, problems: &mut Vec<String>) {
    let mut rule = |keys: &[&str], broken: bool, why: &str| {
        if broken && keys.iter().all(|path| !read.settings.setting(path).refused) {
            let named: Vec<_> = keys.iter().map(|path| read.named(path)).collect();
            problems.push(format!("{}: {why}", named.join(" with ")));
        }
    };
    let sizes = &config.analytics.batch_sizes;
    rule(
        &["analytics.batch_sizes"],
        !sizes.is_sorted_by(|a, b| a < b),
        "batch sizes must ascend, and none may stand twice",
    );
    rule(
        &["analytics.max_wait_ms", "analytics.timeout_ms"],
        config.analytics.max_wait < config.analytics.timeout,
        "impossible combination: the longest wait is shorter than the timeout",
    );
    rule(
        &["cache.prefix", "flow.k"],
        config
            .cache
            .as_ref()
            .is_some_and(|cache| cache.prefix > config.flow.k),
        "impossible combination: the prefix is longer than the series",
    );
    rule(
        &["flow.buckets", "flow.max_flows"],
        config.flow.buckets * 8 < config.flow.max_flows,
        "impossible combination: a bucket has 8 flows, so max_flows is at most 8 times buckets",
    );
    let named = read.list("accel.devices").len();
    let layout = &config.pipeline.layout;
    rule(
        &["accel.devices", "pipeline.layout"],
        Layout::parse(read.text("pipeline.layout")).is_some()
            && named != 1
            && named != layout.devices,
        &format!(
            "impossible combination: name one device for each of the layout's {}, or one for all",
            layout.devices
        ),
    );
    rule(
        &["io.mode", "io.interfaces"],
        config.io.mode == IoMode::Inline && config.io.interfaces.len() != 2,
        "impossible combination: inline goes between exactly two interfaces",
    );
    let mut names = config.io.interfaces.clone();
    names.sort_unstable();
    names.dedup();
    rule(
        &["io.interfaces"],
        names.len() != config.io.interfaces.len(),
        "an interface may stand only once",
    );
    let threads = threads_of(config).len();
    let cores = config.pipeline.cores.len();
    rule(
        &["pipeline.cores", "pipeline.layout", "pipeline.instances"],
        cores > 0 && cores < threads,
        &format!("too few cores: {threads} threads want one each; name as many, or none"),
    );
}

/// Typed access to the settings. Kinds and ranges were checked on reading, so the conversions here
/// cannot fail; were a path or type wrong in this file, every start and every test would stop here.
struct Reader<'a> {
    settings: &'a Settings,
}

#[expect(
    clippy::expect_used,
    reason = "invariant of the catalogue: each value has its key's kind and range"
)]
impl<'a> Reader<'a> {
    fn value(&self, path: &str) -> &'a Value {
        &self.settings.setting(path).value
    }

    fn origin(&self, path: &str) -> &'a Origin {
        &self.settings.setting(path).origin
    }

    /// The key with its value and origin, for messages.
    fn named(&self, path: &str) -> String {
        format!("{path} = {} ({})", self.value(path), self.origin(path))
    }

    fn count(&self, path: &str) -> u64 {
        let n = self.value(path).as_integer().expect("an integer key");
        u64::try_from(n).expect("a range that starts at 0 or above")
    }

    fn size(&self, path: &str) -> usize {
        size_of_value(self.value(path))
    }

    fn float(&self, path: &str) -> f64 {
        self.value(path).as_float().expect("a float key")
    }

    fn bool(&self, path: &str) -> bool {
        self.value(path).as_bool().expect("a bool key")
    }

    fn text(&self, path: &str) -> &'a str {
        self.value(path).as_str().expect("a text key")
    }

    fn sizes(&self, path: &str) -> Vec<usize> {
        self.list(path).iter().map(size_of_value).collect()
    }

    fn list(&self, path: &str) -> &'a [Value] {
        self.value(path).as_array().expect("a list key")
    }

    fn path(&self, path: &str) -> Option<PathBuf> {
        self.settings.setting(path).path()
    }

    fn seconds(&self, path: &str) -> Option<Duration> {
        Some(self.count(path))
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs)
    }

    fn milliseconds(&self, path: &str) -> Duration {
        Duration::from_secs_f64(self.float(path) / 1000.0)
    }
}

#[expect(
    clippy::expect_used,
    reason = "invariant of the catalogue: sizes are integers of 0 to 2^26"
)]
fn size_of_value(value: &Value) -> usize {
    usize::try_from(value.as_integer().expect("an integer")).expect("a size")
}
