//! The flow manager.

use std::path::PathBuf;
use std::time::Duration;

use cring::K_MAX;
use flowmgr::{BUCKETS_MAX, Bounds, CLOSED_TIMEOUT_S, MAX_FLOWS_MAX, SERVERS_MAX};
use measure::{Feature, Features};

use crate::kind::{Kind, integer, seconds_in};
use crate::nearest;
use crate::origin::Origin;
use crate::section;
use crate::setting::Setting;
use crate::words::words;

/// Seconds, as the flow table can keep them.
const TIMEOUT_S_MAX: i64 = flowmgr::TIMEOUT_S_MAX as i64;

/// `flow.active_timeout_s` of live traffic, where the user says nothing.
const ACTIVE_LIVE: Duration = Duration::from_secs(120);
/// `flow.half_open_timeout_s` of live traffic. Common systems repeat a SYN after 1, 2, 4 and 8 s;
/// these are still one flow.
const HALF_OPEN_LIVE: Duration = Duration::from_secs(10);
/// `flow.established_timeout_s` of live traffic. Push services and WebSockets send something at
/// least every 30 minutes.
const ESTABLISHED_LIVE: Duration = Duration::from_secs(2100);

section! {
    /// The flow manager.
    pub struct Flow = One "flow";

    /// length of the series, which the model decides: 10 stands for its own k, and any other value
    /// must be its k
    k: usize = restart "k", integer(1, K_MAX as i64), "10", "packets";
    /// a flow ends after this long without a packet
    idle_timeout: Option<Duration> = live "idle_timeout_s", integer(0, TIMEOUT_S_MAX), "30",
        "seconds, 0 = off" => Setting::seconds_or_off;
    /// how often a flow that goes on is recorded
    active: ByRun = live "active_timeout_s", integer(-1, 86_400), "-1",
        "seconds, 0 = off, -1 = 120 live and off in a replay" => |s| timeout(s, ACTIVE_LIVE);
    /// how long late packets still count for a flow that ended by FIN or RST, before its record is
    /// written
    closed_timeout: Duration = live "closed_timeout_s", seconds_in(CLOSED_TIMEOUT_S), "5",
        "seconds" => Setting::seconds;
    /// a flow that nobody has answered, with fewer than k packets, ends after this long without a
    /// packet; at most idle_timeout_s
    half_open: ByRun = live "half_open_timeout_s", integer(-1, TIMEOUT_S_MAX), "-1",
        "seconds, 0 = as idle_timeout_s, -1 = 10 live and as idle_timeout_s in a replay"
        => |s| timeout(s, HALF_OPEN_LIVE);
    /// an established TCP connection without FIN ends after this long without a packet, so that it
    /// keeps its label between keep-alives; where the table is full, flows that are silent for
    /// longer than idle_timeout_s are evicted
    established: ByRun = live "established_timeout_s", integer(-1, TIMEOUT_S_MAX), "-1",
        "seconds, 0 = as idle_timeout_s, -1 = 2100 live and as idle_timeout_s in a replay"
        => |s| timeout(s, ESTABLISHED_LIVE);
    /// whether FIN from both sides, or RST, ends a TCP flow; false leaves the end to the timeouts
    end_on_fin_rst: bool = live "end_on_fin_rst", Kind::Bool, "true", "";
    /// bucket hash: "keyed" withstands crafted collisions, "fenxi" is the paper's, kept to
    /// reproduce its figures
    hash: FlowHash = restart "hash", Kind::OneOf(FlowHash::NAMES), "\"keyed\"", "";
    /// key of the bucket hash; 0: fixed in a replay, so that runs repeat, and random for live
    /// traffic
    hash_seed: Option<u64> = restart "hash_seed", integer(0, i64::MAX), "0", "" => hash_seed;
    /// flows held by each flow manager; where the table is full, half-open and idle flows are
    /// evicted, and if there are none, packets of new flows pass as table_full. With less than
    /// 4 GB of memory, `fenxi run` has one for each 4 kB by default, 65536 with 256 MB
    max_flows: usize = restart "max_flows", integer(64, MAX_FLOWS_MAX as i64), "1048576", "flows";
    /// size of the hash table; 0: a quarter of max_flows, rounded up to a power of two
    buckets: usize = restart "buckets",
        Kind::PowerOfTwo { min: 8, max: BUCKETS_MAX as i64, or_zero: true }, "0",
        "buckets of 8 flows";
    with {
        /// Where `k` was set.
        pub k_origin: Origin,
        /// `active` of this run: a replay, unless [`Loaded::live`](crate::Loaded::live) was called.
        pub active_timeout: Option<Duration>,
        /// `half_open` of this run.
        pub half_open_timeout: Option<Duration>,
        /// `established` of this run.
        pub established_timeout: Option<Duration>,
    }
}

/// A timeout; `None`: off.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ByRun {
    /// In a replay.
    pub replay: Option<Duration>,
    /// Where the traffic is live.
    pub live: Option<Duration>,
}

/// -1 stands for "off in a replay, and `by_default` live".
fn timeout(setting: &Setting, by_default: Duration) -> Result<ByRun, String> {
    let replay = match setting.get::<i64>()? {
        -1 => {
            let (replay, live) = (None, Some(by_default));
            return Ok(ByRun { replay, live });
        }
        _ => setting.seconds_or_off()?,
    };
    Ok(ByRun { replay, live: replay })
}

fn hash_seed(setting: &Setting) -> Result<Option<u64>, String> {
    Ok(Some(setting.get()?).filter(|seed| *seed != 0))
}

words! {
    /// How a flow's bucket is found.
    pub enum FlowHash {
        /// By a keyed hash over the ordered tuple.
        #[default]
        Keyed = "keyed",
        /// By the paper's `rss ^ src ^ dst`.
        Fenxi = "fenxi",
    }
}

section! {
    /// The memory of servers: what their flows weighed.
    pub struct Servers = One "servers";

    /// cells of 32 bytes, for each flow manager, and 32 bytes per flow; a server takes one or two.
    /// Kept only if a model reads local context (docs/model.md), in memory, under hashes instead
    /// of addresses; 0: never, and such a model is refused
    entries: usize = restart "entries", integer(0, SERVERS_MAX as i64), "262144", "cells";
    /// the file in which `fenxi run` keeps it over restarts, for its own user alone (mode 0600). It
    /// has the key of the hashes, so its reader can test whether an address is in it. What it
    /// says counts half after each day without fenxi, and nothing after a week
    path: Option<PathBuf> = restart "path", Kind::Text, "\"\"",
        "path, empty = none" => Setting::file;
    /// how often the file is written, besides at the end
    every: Duration = restart "every_s", integer(1, 86_400), "300",
        "seconds" => Setting::seconds;
}

section! {
    /// What is measured of flows.
    pub struct Measure = One "measure";

    /// whether round trips, responses and what was sent again are measured of each flow
    /// (docs/measure.md), for records, `fenxi ctl flows` and explain; takes 192 bytes per flow and
    /// a tenth of the time of packets; off, none of both
    flows: bool = restart "flows", Kind::Bool, "false", "";
    /// what is measured: also zero_windows, and rtt_timestamps, spin, dns and sizes, which take 64
    /// bytes more per flow and look at options or payload
    features: Vec<Feature> = restart "features", Kind::TextList { least: 1 },
        "[\"server_handshake\", \"client_handshake\", \"response\", \"rtt\", \"gap\", \"window\", \
         \"duration\", \"flow_bytes\", \"retransmits\", \"out_of_order\", \"duplicate_acks\"]",
        "names" => measured;
}

impl Measure {
    /// What is measured; nothing while it is off.
    pub fn in_use(&self) -> Features {
        let features = self.features.iter().copied().filter(|_| self.flows);
        features.collect()
    }
}

fn measured(setting: &Setting) -> Result<Vec<Feature>, String> {
    setting.list(|name| {
        let found = Feature::ALL.into_iter().find(|it| it.name() == name);
        found.ok_or_else(|| {
            let known = Feature::ALL.map(Feature::name);
            let near = nearest(name, known.iter().copied());
            let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
            format!("{name:?} is no measured feature; they are {}{near}", known.join(", "))
        })
    })
}

section! {
    /// What flows do, by their counts.
    pub struct Behaviours = One "behaviour";

    /// whether flows get a behaviour from their counts, beside their label: bulk, interactive,
    /// realtime, idle, or none yet (docs/policy.md); takes 40 bytes per flow and no time of
    /// packets; a look at each flow that has packets once a second
    enabled: bool = restart "enabled", Kind::Bool, "true", "";
    /// bulk: a flow with more bytes, both directions, at the IP layer, from the packet that
    /// crosses the bound; bytes sent while it was interactive or realtime do not count. At a
    /// campus, 1.6 % of the flows are larger than 100 kB, and have 97 % of the bytes
    bulk_bytes: u32 = restart "bulk_bytes", integer(1, Bounds::BULK_BYTES_MAX as i64), "100000",
        "bytes";
    /// interactive and realtime: the mean length of a direction's packets is at most this, at the
    /// IP layer. Speech has 60 to 280 bytes (G.711 of 30 ms), keystrokes and their echo less than
    /// 150
    small_bytes: u32 = restart "small_bytes", integer(40, 65_535), "300", "bytes";
    /// interactive: packets both ways, small, and no direction has more than this, which is faster
    /// than people type
    interactive_packets: u32 = restart "interactive_packets", integer(1, 100_000), "30",
        "packets per second";
    /// realtime: UDP, small packets both ways, and each direction has at least this. Speech has 17
    /// to 50, games 20 to 60
    realtime_packets: u32 = restart "realtime_packets", integer(1, 100_000), "10",
        "packets per second";
    /// interactive and realtime: how long a flow must show it before it counts, and something else
    /// before it ends
    hold_s: u8 = restart "hold_s", integer(1, 60), "3", "seconds with packets";
    /// idle: a flow with packets both ways that has had none for so long; with the next one it is
    /// again what it was
    idle_s: u16 = restart "idle_s", integer(1, 3600), "10", "seconds";
}

impl Behaviours {
    /// The bounds, unless flows have no behaviour.
    pub fn in_use(&self) -> Option<Bounds> {
        self.enabled.then_some(Bounds {
            bulk_bytes: self.bulk_bytes,
            small_bytes: self.small_bytes,
            interactive_packets_max: self.interactive_packets,
            realtime_packets_min: self.realtime_packets,
            hold_s: self.hold_s,
            idle_s: self.idle_s,
        })
    }
}
