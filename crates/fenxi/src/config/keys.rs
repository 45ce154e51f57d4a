//! The catalogue: every configuration key, declared once.
//!
//! Reading files, the environment and `--set`, `config show`, suggestions and the test of
//! `configs/1-1-1.toml` all work from [`KEYS`]. A default is written as TOML and read by the same
//! code as a user's value, so a default that breaks its own key's rules cannot go unnoticed.

use serde::Serialize;

use super::kind::{Entry, Kind};

/// One configuration key.
#[derive(Debug)]
pub struct Key {
    /// Section and name, as in `flow.k`.
    pub path: &'static str,
    /// Type and range of the value.
    pub kind: Kind,
    /// Built-in default, as TOML.
    pub default: &'static str,
    /// What one of the value is; empty where the value counts nothing.
    pub unit: &'static str,
    /// What the key is for, in one line.
    pub why: &'static str,
    /// When another value takes effect.
    pub change: Change,
}

/// When another value of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// With a reload.
    Live,
    /// With the next start.
    Restart,
}

impl Key {
    /// The part before the dot.
    pub fn section(&self) -> &'static str {
        self.path
            .split_once('.')
            .map_or(self.path, |(section, _)| section)
    }

    /// The part after the last dot.
    pub fn name(&self) -> &'static str {
        self.path
            .rsplit_once('.')
            .map_or(self.path, |(_, name)| name)
    }

    /// Whether a reload can change it.
    pub fn is_live(&self) -> bool {
        self.change == Change::Live
    }

    /// The environment variable that sets the key: `FENXI_FLOW_IDLE_TIMEOUT_S` for
    /// `flow.idle_timeout_s`.
    pub fn variable(&self) -> String {
        format!("FENXI_{}", self.path.replace('.', "_").to_ascii_uppercase())
    }
}

/// The key whose value is a table of its own: label to DSCP.
pub const TAG_DSCP: &str = "tag.dscp";

/// Another one: label to bits of the connection mark.
pub const MARK_CLASS: &str = "mark.class";

/// Another one: label to least confidence.
pub const CLASS_CONFIDENCE: &str = "model.class_confidence";

/// The section that holds tables with names of the user's choice, `[device.NAME]`.
pub const DEVICE: &str = "device";

/// All keys, for tests that hold others against them.
#[cfg(test)]
pub static KEYS_AND_DEVICES: [&[Key]; 2] = [KEYS, DEVICE_KEYS];

/// Position in [`KEYS`] of the key called `path`.
pub fn position(path: &str) -> Option<usize> {
    KEYS.iter().position(|key| key.path == path)
}

/// Names of the sections, in the order of the catalogue.
pub fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = KEYS.iter().map(Key::section).collect();
    sections.dedup();
    sections
}

/// Position in [`DEVICE_KEYS`] of the key called `name`.
pub fn device_position(name: &str) -> Option<usize> {
    DEVICE_KEYS.iter().position(|key| key.name() == name)
}

/// The candidate that `wrong` was most likely meant to be, if any is near.
///
/// Slips in the whole path count, the right name in the wrong section (`k`, `tag.k` for `flow.k`),
/// and a name cut short (`flow.idle` for `flow.idle_timeout_s`).
pub fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Three quarters lets one slip pass in a word of four letters.
    const NEAR: f64 = 0.75;
    const CUT_SHORT: f64 = 0.8;
    // The right name elsewhere ranks below an equal likeness of the whole path.
    const ELSEWHERE: f64 = 0.95;
    let wrong = wrong.to_ascii_lowercase();
    let wrong_name = wrong.rsplit('.').next().unwrap_or(&wrong);
    let likeness = |candidate: &str| {
        let candidate = candidate.to_ascii_lowercase();
        let name = candidate.rsplit('.').next().unwrap_or(&candidate);
        let whole = strsim::normalized_damerau_levenshtein(&wrong, &candidate);
        let elsewhere = ELSEWHERE * strsim::normalized_damerau_levenshtein(wrong_name, name);
        let is_cut_short = wrong_name.len() > 2 && candidate.starts_with(&wrong);
        whole
            .max(elsewhere)
            .max(if is_cut_short { CUT_SHORT } else { 0.0 })
    };
    candidates
        .into_iter()
        .map(|candidate| (likeness(candidate), candidate))
        .filter(|(likeness, _)| *likeness >= NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

const fn key(
    path: &'static str,
    kind: Kind,
    default: &'static str,
    unit: &'static str,
    why: &'static str,
) -> Key {
    Key {
        path,
        kind,
        default,
        unit,
        why,
        change: Change::Restart,
    }
}

/// A key that a reload can change. `run::reload` says what it reaches, and tests that it reaches something.
const fn live(
    path: &'static str,
    kind: Kind,
    default: &'static str,
    unit: &'static str,
    why: &'static str,
) -> Key {
    Key {
        change: Change::Live,
        ..key(path, kind, default, unit, why)
    }
}

const fn integer(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

/// Every key, section by section.
#[rustfmt::skip] // A table: one key per line or two reads better than seven lines each.
pub static KEYS: &[Key] = &[
    key("io.burst", integer(1, 256), "128", "frames",
        "how many frames are taken from the port and walked through the table at a time"),
    key("io.backend", Kind::OneOf(&["af_packet"]), "\"af_packet\"", "",
        "how frames come from the interfaces and leave by them"),
    key("io.mode", Kind::OneOf(&["tap", "mark", "inline"]), "\"tap\"", "",
        "tap: the traffic is a copy and nothing is sent; mark: the kernel forwards and gets labels as connection marks; \
         inline: what comes in on one of two interfaces leaves by the other"),
    key("io.interfaces", Kind::TextList { least: 0 }, "[]", "names",
        "the interfaces of `fenxi run`; exactly two where mode is inline"),
    key("io.promiscuous", Kind::Bool, "false", "",
        "whether frames for other machines are received; inline always does"),
    key("io.snap_length", integer(64, 262_144), "262144", "bytes",
        "mode tap and mark: the most that is kept of a frame"),
    key("io.block_bytes", Kind::PowerOfTwo { min: 1 << 16, max: 1 << 24, or_zero: false }, "131072", "bytes",
        "size of a block of the receive ring; no frame may be larger"),
    key("io.blocks", integer(2, 65_536), "256", "blocks",
        "blocks of each receive ring, of which each interface and flow manager has one; they hold what comes in blocks x block_timeout_ms at least"),
    key("io.block_timeout_ms", integer(1, 1000), "1", "milliseconds",
        "a block that is not full is handed over so long after its first frame"),
    key("io.give_up_s", integer(1, 86_400), "30", "seconds",
        "how long a run waits while all its interfaces are gone; then it ends with exit code 69"),

    key("flow.k", integer(1, 32), "10", "packets",
        "length of the series, which the model decides: 10 stands for its own k, and any other value must be its k"),
    live("flow.idle_timeout_s", integer(0, 32_000), "30", "seconds, 0 = off",
        "a flow ends after this long without a packet"),
    live("flow.active_timeout_s", integer(-1, 86_400), "-1", "seconds, 0 = off, -1 = 120 live and off in a replay",
        "a flow that lasts is recorded this often while it goes on"),
    live("flow.closed_timeout_s", integer(1, 300), "5", "seconds",
        "how long a flow that ended by FIN or RST takes in stragglers before its record is written"),
    live("flow.half_open_timeout_s", integer(-1, 32_000), "-1",
        "seconds, 0 = as idle_timeout_s, -1 = 10 live and as idle_timeout_s in a replay",
        "a flow that nobody has answered, and that has fewer than k packets, ends after this long without a packet; \
         at most idle_timeout_s"),
    live("flow.established_timeout_s", integer(-1, 32_000), "-1",
        "seconds, 0 = as idle_timeout_s, -1 = 2100 live and as idle_timeout_s in a replay",
        "an established TCP connection without FIN ends after this long without a packet, so that it keeps its label \
         between keep-alives; beyond idle_timeout_s it makes room for others in a full table"),
    live("flow.end_on_fin_rst", Kind::Bool, "true", "",
        "whether FIN from both sides, or RST, ends a TCP flow; false leaves the end to the timeouts"),
    key("flow.hash", Kind::OneOf(&["keyed", "fenxi"]), "\"keyed\"", "",
        "bucket hash: \"keyed\" withstands crafted collisions, \"fenxi\" is the paper's, kept to reproduce its figures"),
    key("flow.hash_seed", integer(0, i64::MAX), "0", "",
        "key of the bucket hash; 0: replay takes a fixed one so that runs repeat, live traffic a random one"),
    key("flow.max_flows", integer(64, 1 << 26), "1048576", "flows",
        "flows held at a time, by each flow manager; then half-open and idle ones make room, and where there are none further flows pass as table_full"),
    key("flow.buckets", Kind::PowerOfTwo { min: 8, max: 1 << 24, or_zero: true }, "0", "buckets of 8 flows",
        "size of the hash table; 0: a quarter of max_flows, rounded up to a power of two"),

    live("tag.mode", Kind::OneOf(&["dscp", "off"]), "\"dscp\"", "",
        "whether packets of labelled flows get the DSCP of their label"),
    live(TAG_DSCP, Kind::Map(Entry::Dscp),
        "{ TLS = \"AF21\", HTTP = \"AF11\", QUIC = \"AF21\", STUN = \"EF\", SD-RTN = \"EF\", Zabbix = \"CS2\", \
         Gnutella = \"CS1\", ETHEREUM = \"CS1\" }", "DSCP: a name or 0 to 63",
        "label to DSCP; labels not named here leave packets as they are; a table in a file replaces the built-in one"),

    live("mark.mask", integer(1, 0xffff_ffff), "0xff00", "bits of the connection mark",
        "mode mark: which bits are fenxi's to write; all others keep what other programs put there"),
    live("mark.overwrite", Kind::Bool, "false", "",
        "whether a connection that has bits of mark.mask set gets those of a later label; false: what is set stays"),
    key("mark.queue", integer(64, 1 << 20), "16384", "updates",
        "marks that may wait to be written; further ones are dropped and counted"),
    live(MARK_CLASS, Kind::Map(Entry::Mark),
        "{ TLS = 0x100, HTTP = 0x200, QUIC = 0x300, STUN = 0x400, SD-RTN = 0x500, Zabbix = 0x600, \
         Gnutella = 0x700, ETHEREUM = 0x800, other = 0xff00 }", "bits of the connection mark, within mark.mask",
        "label to bits as rules see them; labels not named here leave connections alone; a table in a file \
         replaces the built-in one"),

    key("ring.slots", Kind::PowerOfTwo { min: 16, max: 1 << 20, or_zero: false }, "4096", "series",
        "series that may wait between the flow manager and the analytics manager"),

    live("analytics.policy", Kind::OneOf(&["carry-over", "timeout", "none", "slo"]), "\"carry-over\"", "",
        "when a batch fires: at the timeout with carry-over (Alg. 2) or padding (Alg. 1), whenever the device is free, or as late as latency_goal_ms allows (Batchy)"),
    live("analytics.timeout_ms", Kind::Float { min: 0.1, max: 1000.0 }, "10.0", "milliseconds",
        "how long the oldest series waits before a batch is composed"),
    live("analytics.phi", Kind::Float { min: 0.0, max: 0.5 }, "0.2", "share of a batch",
        "carry-over: padding above this share leaves the newest series to the next batch instead"),
    live("analytics.batch_sizes", Kind::IntegerList { least: 1, min: 1, max: 16_384, most: 16 },
        "[8, 16, 32, 64, 128, 256]", "series",
        "batch sizes to choose from, ascending; for a device that takes any size the last is the cap"),
    live("analytics.max_wait_ms", Kind::Float { min: 0.1, max: 60_000.0 }, "50.0", "milliseconds",
        "no series is carried over for longer than this; at least timeout_ms"),
    live("analytics.latency_goal_ms", Kind::Float { min: 0.1, max: 1000.0 }, "2.0", "milliseconds",
        "policy slo: time from a series' emission to its label that 99 of 100 shall keep"),
    live("analytics.slo_delta", Kind::Float { min: 0.0, max: 0.5 }, "0.05", "share of the goal",
        "policy slo: this much of the goal is kept in reserve"),

    live("cache.prefix", integer(0, 32), "0", "packets, 0 = off",
        "flows alike in their first so many lengths share a label without inference; k is exact, less is approximate"),
    live("cache.entries", integer(0, 1 << 24), "65536", "prefixes, 0 = off",
        "prefixes remembered; the least recently used one makes room"),
    live("cache.audit", Kind::Float { min: 0.0, max: 1.0 }, "0.01", "share of hits",
        "hits that are inferred as well, to measure how often the cache is wrong"),

    key("pipeline.layout", Kind::Text, "\"1:1:1\"", "flow managers : analytics managers : devices",
        "threads of a pipeline, each number from 1 to 64"),
    key("pipeline.instances", integer(1, 64), "1", "pipelines",
        "pipelines side by side, which share the flows out by RSS hash; each has the whole layout"),
    key("pipeline.cores", Kind::IntegerList { least: 0, min: 0, max: 4095, most: 4096 }, "[]", "CPU numbers",
        "where threads are pinned: flow managers, then analytics managers, then device threads, pipeline by pipeline; \
         empty: automatic"),

    live("accel.devices", Kind::TextList { least: 1 }, "[\"cpu\"]", "",
        "where the model runs, one per device of the layout or one for all: a provider's name, or NAME of a [device.NAME]"),
    key("accel.library", Kind::Text, "\"\"", "path",
        "the ONNX Runtime library; empty: look beside the program and in the usual places"),
    live("accel.simulated_t0_us", Kind::Float { min: 0.0, max: 1_000_000.0 }, "100.0", "microseconds per batch",
        "device simulated: the fixed part of a batch's latency"),
    live("accel.simulated_t1_us", Kind::Float { min: 0.0, max: 1_000_000.0 }, "2.0", "microseconds per series",
        "device simulated: what each series of a batch adds to its latency"),
    live("accel.fixed_sizes", Kind::Bool, "false", "",
        "true: devices take only the sizes of analytics.batch_sizes and batches are padded, as NPUs want; for experiments"),

    live("model.path", Kind::Text, "\"\"", "path",
        "folder of the model bundle; empty: the one that ships with the program"),
    live("model.min_confidence", Kind::Float { min: -1.0, max: 1.0 }, "-1.0", "probability, negative = as the bundle says",
        "a flow whose likeliest class is less likely than this gets the label unknown"),
    live("model.open_timeout_s", Kind::Float { min: 0.1, max: 86_400.0 }, "50.0", "seconds",
        "a model that is not open, warm and tested by then is given up: at the start the run ends with exit code 69, later the \
         old model stays; raise it for devices that compile a model for minutes"),
    live(CLASS_CONFIDENCE, Kind::Map(Entry::Share), "{}", "probability",
        "the same for single labels, which goes over min_confidence"),

    key("records.path", Kind::Text, "\"\"", "path, empty = none",
        "where `fenxi run` writes records as JSON Lines, behind those that are there; --flows goes over it"),
    key("records.rotate_mib", integer(0, 1 << 20), "256", "MiB, 0 = never",
        "before the file grows larger it becomes PATH.1 and a new one begins; 0 where logrotate does that"),
    key("records.rotate_files", integer(1, 1000), "4", "files",
        "how many old ones are kept, PATH.1 the newest of them"),
    key("records.queue", integer(1024, 1 << 22), "65536", "records",
        "records that may wait for the writer"),
    key("records.drain_s", integer(0, 3600), "2", "seconds",
        "how long the end of `fenxi run` goes on writing the records that are left; then the rest is lost, counted, and the exit code is 74"),

    key("control.http", Kind::Text, "\"127.0.0.1:9469\"", "ADDRESS:PORT or unix:PATH, empty = off",
        "where /metrics, /livez and /readyz are served"),
    key("control.http_exposed", Kind::Bool, "false", "",
        "whether control.http may be an address that other machines reach; anybody there can read it then"),
    key("control.socket", Kind::Text, "\"/run/fenxi/ctl.sock\"", "path, empty = off",
        "the Unix socket of `fenxi ctl`; root and the user of the service may use it"),
    key("control.ready_without_interfaces", Kind::Bool, "false", "",
        "whether /readyz stays 200 while all interfaces are down or gone (mode inline: one of them)"),

    key("process.sandbox", Kind::Bool, "true", "",
        "whether `fenxi run` gives up all rights that it does not need any more: capabilities, new programs, new TCP, and \
         writing outside the folders of records and sockets"),

    live("log.level", Kind::Text, "\"info\"", "off, error, warn, info, debug or trace; by target: info,fenxi::mark=debug",
        "what `fenxi run` logs; `fenxi ctl log` changes it while it runs, and FENXI_LOG is short for its variable"),
    key("log.to", Kind::OneOf(&["auto", "journald", "stderr"]), "\"auto\"", "",
        "auto: the journal where stderr leads there, as under systemd, else lines on stderr"),
];

/// The keys of a `[device.NAME]` table. They are set in a file or by `--set`, and have no variables, since a name may hold
/// what a variable may not. The defaults are what `configs/1-1-1.toml` shows; where they hang on other keys, the text says
/// how.
#[rustfmt::skip] // As above.
pub static DEVICE_KEYS: &[Key] = &[
    live("device.NAME.provider", Kind::OneOf(&PROVIDERS), "\"cpu\"", "",
        "what runs the model; may be left out where NAME is a provider's"),
    live("device.NAME.plugin", Kind::Text, "\"\"", "path",
        "library of a plug-in provider; for plugin, and for qnn where it comes as one"),
    live("device.NAME.options", Kind::Map(Entry::Text), "{}", "",
        "options of the provider, handed over as they are"),
    live("device.NAME.batch_sizes", Kind::IntegerList { least: 1, min: 1, max: 16_384, most: 16 },
        "[8, 16, 32, 64, 128, 256]", "series",
        "as analytics.batch_sizes, which is the default"),
    live("device.NAME.fixed_sizes", Kind::Bool, "false", "",
        "as accel.fixed_sizes, which is the default; qnn and tensorrt have true"),
    live("device.NAME.thread", Kind::OneOf(&["own", "shared"]), "\"shared\"", "",
        "shared: works inside its analytics thread, where its deadline can end a loop of the model but not every hang; own: the default but for simulated, \
         and for cpu where its analytics manager has no other device"),
    live("device.NAME.deadline_ms", Kind::Float { min: 0.0, max: 3_600_000.0 }, "1000.0", "milliseconds, 0 = none",
        "a batch that is not back by then has failed, and the device is left alone until it answers again"),
    live("device.NAME.profile", Kind::Text, "\"\"", "path",
        "file of `fenxi profile`, for policy slo; empty: a short profile is measured at the start"),
    live("device.NAME.simulated_t0_us", Kind::Float { min: 0.0, max: 1_000_000.0 }, "100.0", "microseconds per batch",
        "as accel.simulated_t0_us, which is the default"),
    live("device.NAME.simulated_t1_us", Kind::Float { min: 0.0, max: 1_000_000.0 }, "2.0", "microseconds per series",
        "as accel.simulated_t1_us, which is the default"),
    live("device.NAME.faults", Kind::Text, "\"\"", "",
        "faults to inject, for experiments, such as error=3,hang=5:200"),
];

/// Providers that a device may name.
pub const PROVIDERS: [&str; 8] = [
    "cpu",
    "openvino",
    "cuda",
    "tensorrt",
    "cann",
    "qnn",
    "plugin",
    "simulated",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_variables_are_unique_and_sections_stand_together() {
        let mut paths: Vec<_> = KEYS.iter().map(|key| key.path).collect();
        let mut variables: Vec<_> = KEYS.iter().map(Key::variable).collect();
        let mut sections = sections();
        for list in [&mut paths, &mut sections] {
            let before = list.len();
            list.sort_unstable();
            list.dedup();
            assert_eq!(list.len(), before);
        }
        variables.sort_unstable();
        variables.dedup();
        assert_eq!(variables.len(), KEYS.len());
        assert!(variables.contains(&"FENXI_FLOW_IDLE_TIMEOUT_S".to_owned()));
        // A section name with an underscore would make variables ambiguous to a reader.
        assert!(
            KEYS.iter()
                .all(|key| !key.section().contains('_') && !key.name().contains('.'))
        );
        assert!(
            KEYS.iter()
                .all(|key| !key.why.is_empty() && !key.why.contains('\n'))
        );
    }

    #[test]
    fn nearest_finds_slips_and_misplaced_names() {
        let paths = || KEYS.iter().map(|key| key.path);
        assert_eq!(
            nearest("flow.idle_timeout", paths()),
            Some("flow.idle_timeout_s")
        );
        assert_eq!(
            nearest("flow.idel_timeout_s", paths()),
            Some("flow.idle_timeout_s")
        );
        assert_eq!(nearest("k", paths()), Some("flow.k"));
        assert_eq!(nearest("flow.K", paths()), Some("flow.k"));
        assert_eq!(nearest("flow.phi", paths()), Some("analytics.phi"));
        assert_eq!(nearest("flow.idle", paths()), Some("flow.idle_timeout_s"));
        assert_eq!(nearest("colour.of_money", paths()), None);
    }
}
