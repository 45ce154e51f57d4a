//! Every key outside of tables with names of the user's choice, section by section.

use analytics::{AUDIT, CACHE_ENTRIES_MAX, PHI, SLO_DELTA};
use cring::K_MAX;
use flowmgr::{BUCKETS_MAX, BURST_MAX, Bounds, CLOSED_TIMEOUT_S, MAX_FLOWS_MAX};
use packetio::{Backend, CAPTURED_MAX};

use super::{float, integer, keys, number_in, power_of_two, seconds_in};
use crate::checked::{self, Capture, FlowHash, IoMode, LogTo, MarkAs, PolicyUpdate};
use crate::draft::{self, Draft, PolicyName, TagMode};
use crate::kind::{Entry, Kind};

/// Seconds, as the flow table can keep them.
const TIMEOUT_S_MAX: i64 = flowmgr::TIMEOUT_S_MAX as i64;

/// Sizes of batches, for all devices or for one.
pub(super) const BATCH_SIZES: Kind = Kind::IntegerList {
    least: 1,
    min: 1,
    max: 16_384,
    most: 16,
};
/// Devices by name.
pub(super) const DEVICES: Kind = Kind::TextList { least: 1 };
/// Milliseconds from a series' emission to its label.
pub(super) const LATENCY_GOAL_MS: Kind = float(0.1, 1000.0);
/// Milliseconds that the oldest series waits.
pub(super) const TIMEOUT_MS: Kind = float(0.1, 1000.0);
/// Milliseconds that a series is carried over.
pub(super) const MAX_WAIT_MS: Kind = float(0.1, 60_000.0);
/// Share of the latency goal in reserve.
pub(super) const SLO_DELTA_SHARE: Kind = number_in(SLO_DELTA);
/// Bits of the connection mark.
pub(super) const MARK_MASK: Kind = integer(1, 0xffff_ffff);
/// The least confidence of a label.
pub(super) const MIN_CONFIDENCE: Kind = float(-1.0, 1.0);
/// Lengths that make the key of the prefix cache; 0 turns it off.
pub(super) const CACHE_PREFIX: Kind = integer(0, K_MAX as i64);
/// Entries of the prefix cache; 0 turns it off.
pub(super) const CACHE_ENTRIES: Kind = integer(0, CACHE_ENTRIES_MAX as i64);
/// Microseconds that a simulated device takes, for a batch or a series.
pub(super) const SIMULATED_US: Kind = float(0.0, 1_000_000.0);

#[rustfmt::skip] // A table: two or three lines per key read better than ten.
keys! {
    /// A key of the catalogue.
    KeyId of KEYS, stored in Draft {
        IoBurst: restart "io.burst", integer(1, BURST_MAX as i64), "128", "frames",
            "how many frames are received and processed at a time"
            => |d, s| s.put(&mut d.io.burst);
        IoBackend: restart "io.backend", Kind::OneOf(Backend::NAMES), "\"af_packet\"", "",
            "how frames are received and sent: af_packet uses packet sockets of the kernel; af_xdp takes frames from the driver, \
             with less delay; dpdk takes cards from the kernel and polls them, in a build with the feature dpdk. \
             af_xdp and dpdk take frames away from the kernel, so they are not for mode mark (docs/ports.md)"
            => |d, s| s.put(&mut d.io.backend);
        IoMode: restart "io.mode", Kind::OneOf(IoMode::NAMES), "\"tap\"", "",
            "tap: the traffic is a copy and nothing is sent; mark: the kernel forwards and gets labels as connection marks; \
             inline: what comes in on one of two interfaces leaves by the other"
            => |d, s| s.put(&mut d.io.mode);
        IoInterfaces: restart "io.interfaces", Kind::TextList { least: 0 }, "[]", "names",
            "the interfaces of `fenxi run`; exactly two where mode is inline"
            => |d, s| s.put(&mut d.io.interfaces);
        IoCapture: restart "io.capture", Kind::OneOf(Capture::NAMES), "\"all\"", "",
            "mode tap and mark: all packets come up from the kernel, or the first ones of each flow (Linux 6.6 or later), and it \
             counts the others; where the kernel refuses, all come up. The default of mode mark is \"first\""
            => |d, s| s.put(&mut d.io.capture);
        IoCountedFlows: restart "io.counted_flows", integer(1024, MAX_FLOWS_MAX as i64), "131072", "flows",
            "capture first: flows that the kernel counts, for each interface and flow manager; it takes 88 bytes for each at \
             once, and beyond them gives up the counts of flows that were silent for longest"
            => |d, s| s.put(&mut d.io.counted_flows);
        IoPromiscuous: restart "io.promiscuous", Kind::Bool, "false", "",
            "whether frames for other machines are received; inline always does"
            => |d, s| s.put(&mut d.io.promiscuous);
        IoSnapLength: restart "io.snap_length", integer(64, CAPTURED_MAX as i64), "262144", "bytes",
            "mode tap and mark: the most bytes that are captured of a frame"
            => |d, s| s.put(&mut d.io.snap_length);
        IoBlockBytes: restart "io.block_bytes", power_of_two(1 << 16, 1 << 24), "131072", "bytes",
            "size of a block of the receive ring; no frame may be larger"
            => |d, s| s.put(&mut d.io.block_bytes);
        IoBlocks: restart "io.blocks", integer(2, 65_536), "256", "blocks",
            "blocks of a receive ring; each flow manager has one ring per interface, which holds at least the frames of \
             blocks x block_timeout_ms"
            => |d, s| s.put(&mut d.io.blocks);
        IoBlockTimeoutMs: restart "io.block_timeout_ms", integer(1, 1000), "1", "milliseconds",
            "a block that is not full is handed over this long after its first frame"
            => |d, s| s.put(&mut d.io.block_timeout_ms);
        IoGiveUpS: restart "io.give_up_s", integer(1, 86_400), "30", "seconds",
            "how long a run waits while all its interfaces are gone; then it exits with code 69"
            => |d, s| s.put_seconds(&mut d.io.give_up_after);
        XdpMode: restart "xdp.mode", Kind::OneOf(checked::XdpMode::NAMES), "\"auto\"", "",
            "io.backend af_xdp: where frames are taken: native, in the driver; generic, in the kernel, which works with any driver \
             and costs more; auto, in the driver where it can do that"
            => |d, s| s.put(&mut d.io.xdp.mode);
        XdpZeroCopy: restart "xdp.zero_copy", Kind::OneOf(checked::ZeroCopy::NAMES), "\"auto\"", "",
            "io.backend af_xdp: whether the card writes into fenxi's memory: on refuses a driver that cannot, off has the kernel copy \
             each frame"
            => |d, s| s.put(&mut d.io.xdp.zero_copy);
        XdpNeedWakeup: restart "xdp.need_wakeup", Kind::Bool, "true", "",
            "io.backend af_xdp: whether the kernel says when it needs a system call to go on; false: one is made for each burst"
            => |d, s| s.put(&mut d.io.xdp.need_wakeup);
        XdpBusyPollUs: restart "xdp.busy_poll_us", integer(0, 10_000), "0", "microseconds, 0 = off",
            "io.backend af_xdp: how long a flow manager without frames asks the driver instead of waiting for an interrupt; keeps \
             CAP_NET_ADMIN"
            => |d, s| s.put(&mut d.io.xdp.busy_poll_us);
        XdpFrames: restart "xdp.frames", power_of_two(64, 1 << 20), "4096", "frames",
            "io.backend af_xdp: how many frames may wait in each receive queue of an interface; more are dropped and counted"
            => |d, s| s.put(&mut d.io.xdp.frames);
        XdpFrameBytes: restart "xdp.frame_bytes", power_of_two(2048, 4096), "2048", "bytes",
            "io.backend af_xdp: memory of each frame: 2048 for an MTU of up to 1770, 4096 for up to 3818"
            => |d, s| s.put(&mut d.io.xdp.frame_bytes);
        XdpToHost: restart "xdp.to_host", Kind::TextList { least: 0 }, "[]", "addresses",
            "io.backend af_xdp: addresses of this machine: frames to them without a VLAN tag, and ARP and neighbour solicitations for \
             them, go to the kernel instead of fenxi"
            => |d, s| draft::addresses(s, &mut d.io.xdp.to_host);

        DpdkArgs: restart "dpdk.args", Kind::TextList { least: 0 }, "[]", "arguments",
            "io.backend dpdk: what DPDK is started with (EAL arguments), such as \"-a\", \"0000:03:00.0\" for a card, \
             \"--vdev=net_pcap0,iface=eth0\" for a device in software, \"--no-huge\", \"-m\", \"512\" to try it out without \
             huge pages; interfaces are then named as DPDK names them"
            => |d, s| s.put(&mut d.io.dpdk.args);
        DpdkMbufs: restart "dpdk.mbufs", integer(1024, 4_194_304), "8192", "buffers",
            "io.backend dpdk: packet buffers of a receive queue; each flow manager has one queue per interface"
            => |d, s| s.put(&mut d.io.dpdk.mbufs);
        DpdkSleepUs: restart "dpdk.sleep_us", integer(0, 10_000), "50", "microseconds, 0 = never sleeps",
            "io.backend dpdk: once no frame has come for a while, a flow manager sleeps for so long between its looks; 0 has the \
             least delay and takes a core for itself"
            => |d, s| s.put_microseconds(&mut d.io.dpdk.sleep);

        FlowK: restart "flow.k", integer(1, K_MAX as i64), "10", "packets",
            "length of the series, which the model decides: 10 stands for its own k, and any other value must be its k"
            => |d, s| s.put(&mut d.flow.k);
        FlowIdleTimeoutS: live "flow.idle_timeout_s", integer(0, TIMEOUT_S_MAX), "30", "seconds, 0 = off",
            "a flow ends after this long without a packet"
            => |d, s| s.put_seconds_or_off(&mut d.flow.idle_timeout);
        FlowActiveTimeoutS: live "flow.active_timeout_s", integer(-1, 86_400),
            "-1", "seconds, 0 = off, -1 = 120 live and off in a replay",
            "how often a flow that goes on is recorded"
            => |d, s| draft::timeouts(
                s, draft::ACTIVE_TIMEOUT_LIVE, &mut d.flow.active_timeout, &mut d.flow.active_timeout_live
            );
        FlowClosedTimeoutS: live "flow.closed_timeout_s", seconds_in(CLOSED_TIMEOUT_S), "5", "seconds",
            "how long late packets still count for a flow that ended by FIN or RST, before its record is written"
            => |d, s| s.put_seconds(&mut d.flow.closed_timeout);
        FlowHalfOpenTimeoutS: live "flow.half_open_timeout_s", integer(-1, TIMEOUT_S_MAX), "-1",
            "seconds, 0 = as idle_timeout_s, -1 = 10 live and as idle_timeout_s in a replay",
            "a flow that nobody has answered, with fewer than k packets, ends after this long without a packet; at most \
             idle_timeout_s"
            => |d, s| draft::timeouts(
                s, draft::HALF_OPEN_TIMEOUT_LIVE, &mut d.flow.half_open_timeout, &mut d.flow.half_open_timeout_live
            );
        FlowEstablishedTimeoutS: live "flow.established_timeout_s", integer(-1, TIMEOUT_S_MAX), "-1",
            "seconds, 0 = as idle_timeout_s, -1 = 2100 live and as idle_timeout_s in a replay",
            "an established TCP connection without FIN ends after this long without a packet, so that it keeps its label \
             between keep-alives; where the table is full, flows that are silent for longer than idle_timeout_s are evicted"
            => |d, s| draft::timeouts(
                s, draft::ESTABLISHED_TIMEOUT_LIVE, &mut d.flow.established_timeout, &mut d.flow.established_timeout_live
            );
        FlowEndOnFinRst: live "flow.end_on_fin_rst", Kind::Bool, "true", "",
            "whether FIN from both sides, or RST, ends a TCP flow; false leaves the end to the timeouts"
            => |d, s| s.put(&mut d.flow.end_on_fin_rst);
        FlowHash: restart "flow.hash", Kind::OneOf(FlowHash::NAMES), "\"keyed\"", "",
            "bucket hash: \"keyed\" withstands crafted collisions, \"fenxi\" is the paper's, kept to reproduce its figures"
            => |d, s| s.put(&mut d.flow.hash);
        FlowHashSeed: restart "flow.hash_seed", integer(0, i64::MAX), "0", "",
            "key of the bucket hash; 0: fixed in a replay, so that runs repeat, and random for live traffic"
            => |d, s| draft::hash_seed(s, &mut d.flow.hash_seed);
        FlowMaxFlows: restart "flow.max_flows", integer(64, MAX_FLOWS_MAX as i64), "1048576", "flows",
            "flows held by each flow manager; where the table is full, half-open and idle flows are evicted, and if there are \
             none, packets of new flows pass as table_full"
            => |d, s| s.put(&mut d.flow.max_flows);
        FlowBuckets: restart "flow.buckets", Kind::PowerOfTwo { min: 8, max: BUCKETS_MAX as i64, or_zero: true },
            "0", "buckets of 8 flows",
            "size of the hash table; 0: a quarter of max_flows, rounded up to a power of two"
            => |d, s| s.put(&mut d.flow.buckets);

        BehaviourEnabled: restart "behaviour.enabled", Kind::Bool, "true", "",
            "whether flows get a behaviour from their counts, beside their label: bulk, interactive, realtime, idle, or none yet \
             (docs/policy.md); takes 40 bytes per flow and no time of packets; a look at each flow that has packets once a second"
            => |d, s| s.put(&mut d.behaviour.enabled);
        BehaviourBulkBytes: restart "behaviour.bulk_bytes", integer(1, Bounds::BULK_BYTES_MAX as i64), "100000", "bytes",
            "bulk: a flow with more bytes, both directions, at the IP layer, from the packet that crosses the bound; those that it \
             had while it was interactive or realtime do not count. Of a campus' flows 1.6 % are larger than 100 kB, and have 97 % \
             of the bytes"
            => |d, s| s.put(&mut d.behaviour.bounds.bulk_bytes);
        BehaviourSmallBytes: restart "behaviour.small_bytes", integer(40, 65_535), "300", "bytes",
            "interactive and realtime: the mean length of a direction's packets is at most this, at the IP layer. Speech has 60 to \
             280 bytes (G.711 of 30 ms), keystrokes and their echo less than 150"
            => |d, s| s.put(&mut d.behaviour.bounds.small_bytes);
        BehaviourInteractivePackets: restart "behaviour.interactive_packets", integer(1, 100_000), "30", "packets per second",
            "interactive: packets both ways, small, and no direction has more than this, which is faster than people type"
            => |d, s| s.put(&mut d.behaviour.bounds.interactive_packets_max);
        BehaviourRealtimePackets: restart "behaviour.realtime_packets", integer(1, 100_000), "10", "packets per second",
            "realtime: UDP, small packets both ways, and each direction has at least this. Speech has 17 to 50, games 20 to 60"
            => |d, s| s.put(&mut d.behaviour.bounds.realtime_packets_min);
        BehaviourHoldS: restart "behaviour.hold_s", integer(1, 60), "3", "seconds with packets",
            "interactive and realtime: how long a flow must show it before it counts, and something else before it ends"
            => |d, s| s.put(&mut d.behaviour.bounds.hold_s);
        BehaviourIdleS: restart "behaviour.idle_s", integer(1, 3600), "10", "seconds",
            "idle: a flow with packets both ways that has had none for so long; with the next one it is again what it was"
            => |d, s| s.put(&mut d.behaviour.bounds.idle_s);

        TagMode: live "tag.mode", Kind::OneOf(TagMode::NAMES), "\"dscp\"", "",
            "whether packets of labelled flows get the DSCP of their label"
            => |d, s| draft::tag_mode(s, &mut d.tag);
        TagDscp: live "tag.dscp", Kind::Map(Entry::Dscp),
            "{ DNS = \"AF21\", SSH = \"AF21\", TLS = \"AF11\", HTTP = \"AF11\", SNMP = \"CS2\", NTP = \"CS2\", MQTT = \"CS2\", \
             NetBIOS = \"CS1\" }", "DSCP: a name or 0 to 63",
            "label or taxonomy to DSCP; labels not named here leave packets as they are; a table in a file replaces the built-in one"
            => |d, s| draft::dscp_rules(s, &mut d.tag.dscp);

        MarkAs: live "mark.as", Kind::OneOf(MarkAs::NAMES), "\"label\"", "",
            "mode mark: what a mark holds: label: the bits of the label in mark.class; dscp: the DSCP of the label in tag.dscp, \
             in the form that tc ... action ctinfo dscp 63 128 reads"
            => |d, s| s.put(&mut d.mark.holds);
        MarkMask: live "mark.mask", MARK_MASK, "0xff000000", "bits of the connection mark",
            "mode mark: the bits that fenxi may write; it leaves all others as they are; where mark.as is dscp, 0xbf"
            => |d, s| s.put(&mut d.mark.mask);
        MarkOverwrite: live "mark.overwrite", Kind::Bool, "false", "",
            "whether a label replaces bits within mark.mask that are set already; false: they stay"
            => |d, s| s.put(&mut d.mark.overwrite);
        MarkZone: restart "mark.zone", integer(0, u16::MAX as i64), "0", "zone of conntrack",
            "the zone of the connections, where rules give them one (ct zone set); no others are found"
            => |d, s| s.put(&mut d.mark.zone);
        MarkQueue: restart "mark.queue", integer(64, 1 << 20), "16384", "updates",
            "how many marks may wait to be written; more are dropped and counted"
            => |d, s| s.put(&mut d.mark.queue);
        MarkClass: live "mark.class", Kind::Map(Entry::Mark),
            "{ TLS = 0x1000000, HTTP = 0x2000000, DNS = 0x4000000, SSH = 0x5000000, SNMP = 0x6000000, NetBIOS = 0x7000000, \
             MQTT = 0x8000000, NTP = 0x9000000 }", "bits of the connection mark, within mark.mask",
            "label or taxonomy to bits of the connection mark; labels not named here leave connections as they are; a table in \
             a file replaces the built-in one"
            => |d, s| draft::mark_rules(s, &mut d.mark.class);

        MarkBehaviour: live "mark.behaviour", Kind::Map(Entry::Mark), "{}", "bits of the connection mark, outside of mark.mask",
            "mode mark: behaviour (bulk, interactive, realtime, idle) to bits of the connection mark; the mark follows the behaviour, \
             so all these bits are replaced with each change, whatever mark.overwrite says; a behaviour not named here clears them"
            => |d, s| draft::behaviour_marks(s, &mut d.mark.behaviour);

        ConnlabelClass: live "connlabel.class", Kind::Map(Entry::Text), "{}",
            "a name in connlabel.file, or a number from 0 to 127 as text",
            "mode mark and tap: label to label of the connection (ct label), of which a connection gets one; labels not named \
             here leave connections as they are; a label may be a taxonomy"
            => |d, s| draft::connlabels(s, &mut d.connlabel);
        ConnlabelFile: restart "connlabel.file", Kind::Text, "\"\"", "path",
            "the file that names labels of connections; empty: /etc/connlabel.conf, which nft reads, or /etc/xtables/connlabel.conf"
            => |d, s| s.put_path(&mut d.connlabel.file);
        ConnlabelOverwrite: live "connlabel.overwrite", Kind::Bool, "false", "",
            "whether a label takes the place of one of connlabel.class that the connection has already; false: that one stays"
            => |d, s| s.put(&mut d.connlabel.overwrite);
        ConnlabelQueue: restart "connlabel.queue", integer(64, 1 << 20), "16384", "updates",
            "how many labels may wait to be written; more are dropped and counted"
            => |d, s| s.put(&mut d.connlabel.queue);

        RingSlots: restart "ring.slots", power_of_two(16, 1 << 20), "4096", "series",
            "how many series may wait between a flow manager and an analytics manager"
            => |d, s| s.put(&mut d.ring.slots);

        AnalyticsPolicy: live "analytics.policy", Kind::OneOf(PolicyName::NAMES), "\"carry-over\"", "",
            "when a batch fires: at the timeout with carry-over (Alg. 2) or padding (Alg. 1), whenever the device is free \
             (none), when it is as large as the device takes (max), as late as latency_goal_ms allows (slo, Batchy), or at \
             once or full, whichever keeps latency_goal_ms (on-off, Batchy's controller without sizes between). The default of \
             mode mark is \"slo\", unless timeout_ms, phi or max_wait_ms is set"
            => |d, s| s.put(&mut d.batching.policy);
        AnalyticsTimeoutMs: live "analytics.timeout_ms", TIMEOUT_MS, "10.0", "milliseconds",
            "how long the oldest series waits before a batch is composed"
            => |d, s| s.put_milliseconds(&mut d.batching.timeout);
        AnalyticsPhi: live "analytics.phi", number_in(PHI), "0.2", "share of a batch",
            "carry-over: where padding would exceed this share, the newest series wait for the next batch"
            => |d, s| s.put(&mut d.batching.phi);
        AnalyticsBatchSizes: live "analytics.batch_sizes", BATCH_SIZES,
            "[8, 16, 32, 64, 128, 256]", "series",
            "batch sizes to choose from, ascending; for a device that takes any size, the last is the limit"
            => |d, s| s.put(&mut d.batching.batch_sizes);
        AnalyticsMaxWaitMs: live "analytics.max_wait_ms", MAX_WAIT_MS, "50.0", "milliseconds",
            "no series is carried over for longer than this; at least timeout_ms"
            => |d, s| s.put_milliseconds(&mut d.batching.max_wait);
        AnalyticsLatencyGoalMs: live "analytics.latency_goal_ms", LATENCY_GOAL_MS, "2.0", "milliseconds",
            "policies slo and on-off: the time from a series to its label that 99 of 100 labels must keep"
            => |d, s| s.put_milliseconds(&mut d.batching.latency_goal);
        AnalyticsSloDelta: live "analytics.slo_delta", SLO_DELTA_SHARE, "0.05", "share of the goal",
            "policies slo and on-off: the share of the goal that is kept in reserve"
            => |d, s| s.put(&mut d.batching.slo_delta);

        CachePrefix: live "cache.prefix", CACHE_PREFIX, "0", "packets, 0 = off",
            "flows share a label without inference where this many of their first lengths are equal; k is exact, less \
             is approximate"
            => |d, s| s.put(&mut d.cache.prefix);
        CacheEntries: live "cache.entries", CACHE_ENTRIES, "65536", "prefixes, 0 = off",
            "how many prefixes are remembered; the least recently used one is evicted"
            => |d, s| s.put(&mut d.cache.entries);
        CacheAudit: live "cache.audit", number_in(AUDIT), "0.01", "share of hits",
            "share of the hits that the model classifies as well, to measure how often the cache is wrong"
            => |d, s| s.put(&mut d.cache.audit);

        PipelineLayout: restart "pipeline.layout", Kind::Text, "\"1:1:1\"", "flow managers : analytics managers : devices",
            "threads of a pipeline, each number from 1 to 64"
            => |d, s| draft::layout(s, &mut d.pipeline.layout);
        PipelineInstances: restart "pipeline.instances", integer(1, 64), "1", "pipelines",
            "pipelines side by side, each with the whole layout; flows are distributed by RSS hash"
            => |d, s| s.put(&mut d.pipeline.instances);
        PipelineCores: restart "pipeline.cores", Kind::IntegerList { least: 0, min: 0, max: 4095, most: 4096 },
            "[]", "CPU numbers",
            "where threads are pinned: flow managers, then analytics managers, then device threads, pipeline by pipeline; \
             empty: automatic"
            => |d, s| s.put(&mut d.pipeline.cores);

        AccelDevices: live "accel.devices", DEVICES, "[\"cpu\"]", "",
            "where the model runs, one name per device of the layout or one for all: a provider, or NAME of a [device.NAME]"
            => |d, s| s.put(&mut d.accel.devices);
        AccelLibrary: restart "accel.library", Kind::Text, "\"\"", "path",
            "the ONNX Runtime library; empty: searched for next to the program and in the usual places"
            => |d, s| s.put_path(&mut d.accel.library);
        AccelProfiles: restart "accel.profiles", Kind::Text, "\"\"", "path",
            "folder of profiles that a start measured, for policies slo and on-off: the next start uses them while model, provider, \
             options, batch sizes, library and CPU are the same; empty: profiles in the CACHE_DIRECTORY of systemd's unit, and \
             none is stored without it"
            => |d, s| s.put_path(&mut d.accel.profiles);
        AccelSimulatedT0Us: live "accel.simulated_t0_us", SIMULATED_US, "100.0", "microseconds per batch",
            "device simulated: the fixed part of a batch's latency"
            => |d, s| s.put(&mut d.accel.simulated_t0_us);
        AccelSimulatedT1Us: live "accel.simulated_t1_us", SIMULATED_US, "2.0", "microseconds per series",
            "device simulated: what each series of a batch adds to its latency"
            => |d, s| s.put(&mut d.accel.simulated_t1_us);
        AccelFixedSizes: live "accel.fixed_sizes", Kind::Bool, "false", "",
            "whether devices take only the sizes of analytics.batch_sizes, so that batches are padded, as NPUs need; for \
             experiments"
            => |d, s| s.put(&mut d.accel.fixed_sizes);

        ModelPath: live "model.path", Kind::Text, "\"\"", "path",
            "folder of the model bundle; empty: the one that ships with the program"
            => |d, s| s.put_path(&mut d.model.path);
        ModelMinConfidence: live "model.min_confidence", MIN_CONFIDENCE, "-1.0", "probability, negative = as the bundle says",
            "a flow whose likeliest class is less likely than this gets the label unknown"
            => |d, s| draft::min_confidence(s, &mut d.model.min_confidence);
        ModelOpenTimeoutS: live "model.open_timeout_s", float(0.1, 86_400.0), "50.0", "seconds",
            "how long a model may take to open, warm up and pass its test; then a start fails with exit code 69, and a reload \
             keeps the old model; raise it for devices that compile a model for minutes"
            => |d, s| s.put_seconds(&mut d.model.open_timeout);
        ModelClassConfidence: live "model.class_confidence", Kind::Map(Entry::Share), "{}", "probability",
            "min_confidence for single labels, which overrides it"
            => |d, s| draft::class_confidences(s, &mut d.model);

        HostsNetworks: restart "hosts.networks", Kind::TextList { least: 0 }, "[]", "ADDRESS/BITS",
            "where the hosts are that a model with [hosts] names: the end of a flow in one of these networks, and no other; \
             empty: the private end, or the originator"
            => |d, s| draft::networks(s, &mut d.host_networks);

        PolicyRules: live "policy.rules", Kind::Text, "\"\"", "path, empty = none",
            "a file of rules that say by addresses, ports, label and volume what is done with flows (docs/policy.md); a reload reads \
             it again"
            => |d, s| s.put_path(&mut d.policy.rules);
        PolicyUpdate: live "policy.update", Kind::OneOf(PolicyUpdate::NAMES), "\"instant\"", "",
            "when rules that `fenxi ctl policy` adds or deletes count: at once, and until the next training such rules are found more \
             slowly; or delayed until an index is trained with them, so that no flow is ever looked up more slowly"
            => |d, s| s.put(&mut d.policy.update);
        PolicyMirror: restart "policy.mirror", Kind::Text, "\"\"", "name, empty = none",
            "the interface to which rules with mirror = \"NAME\" copy packets, in mode inline; rules give its name; it is an \
             interface of the kernel, whatever io.backend is, and none of io.interfaces"
            => |d, s| s.put_word(&mut d.policy.mirror);

        RecordsPath: restart "records.path", Kind::Text, "\"\"", "path, empty = none",
            "the file to which `fenxi run` appends records as JSON Lines; --flows overrides it"
            => |d, s| draft::records_path(s, &mut d.records.path);
        RecordsRotateMib: restart "records.rotate_mib", integer(0, 1 << 20), "256", "MiB, 0 = never",
            "before the file grows larger than this, it becomes PATH.1 and a new file begins; 0 where logrotate does that"
            => |d, s| draft::rotate_bytes(s, &mut d.rotate);
        RecordsRotateFiles: restart "records.rotate_files", integer(1, 1000), "4", "files",
            "how many old files are kept; PATH.1 is the newest"
            => |d, s| s.put(&mut d.rotate.files);
        RecordsSeries: restart "records.series", float(0.0, 1.0), "0.0", "share of the flows",
            "whose records have the series, to train a model with (docs/train.md); a flow is chosen by its number alone; \
             --series: all"
            => |d, s| s.put(&mut d.records.series);
        RecordsQueue: restart "records.queue", integer(1024, 1 << 22), "65536", "records",
            "how many records may wait for the writer"
            => |d, s| s.put(&mut d.records.queue);
        RecordsDrainS: restart "records.drain_s", integer(0, 3600), "2", "seconds",
            "how long `fenxi run` may take at its end to write the records that are left; the rest is lost and counted, and \
             the exit code is 74"
            => |d, s| s.put_seconds(&mut d.records.drain_within);

        RecordsSocket: restart "records.socket", Kind::Text, "\"\"", "path, empty = none",
            "the Unix socket on which `fenxi run` gives records as JSON Lines to any program that connects, at most 16 at a \
             time; root, the user and the group of the service may connect"
            => |d, s| draft::socket(s, &mut d.records.socket);
        RecordsSocketKib: restart "records.socket_kib", integer(256, 1 << 20), "4096", "KiB",
            "how far a reader of records.socket may fall behind; then records are left out for it, and a line of type lost \
             says how many"
            => |d, s| draft::socket_backlog(s, &mut d.records);

        IpfixTo: restart "ipfix.to", Kind::Text, "\"\"", "udp://HOST:PORT, tcp://HOST:PORT or file:PATH, empty = none",
            "where `fenxi run` sends records of flows as IPFIX (docs/ipfix.md); --ipfix overrides it"
            => |d, s| draft::destination(s, &mut d.ipfix.to);
        IpfixDomain: restart "ipfix.domain", integer(0, u32::MAX as i64), "1", "",
            "observation domain: by it a collector tells exporters with one address apart"
            => |d, s| s.put(&mut d.ipfix.domain);
        IpfixTemplateS: restart "ipfix.template_s", integer(1, 86_400), "60", "seconds",
            "how often templates and the names of labels are sent again over UDP"
            => |d, s| s.put_seconds(&mut d.ipfix.template_every);
        IpfixQueue: restart "ipfix.queue", integer(1024, 1 << 22), "65536", "records",
            "how many records may wait while the collector is slow or away; more are dropped and counted"
            => |d, s| s.put(&mut d.ipfix.queue);

        KafkaBrokers: restart "kafka.brokers", Kind::TextList { least: 0 }, "[]", "HOST:PORT; empty = none",
            "brokers to which `fenxi run` sends records as JSON, a message each (docs/records.md); only in a build with the \
             feature kafka"
            => |d, s| draft::brokers(s, &mut d.kafka);
        KafkaTopic: restart "kafka.topic", Kind::Text, "\"fenxi\"", "",
            "their topic"
            => |d, s| draft::topic(s, &mut d.kafka.topic);
        KafkaOptions: restart "kafka.options", Kind::Map(Entry::Text), "{}", "properties of librdkafka",
            "such as security.protocol, as texts"
            => |d, s| draft::kafka_options(s, &mut d.kafka);

        ControlHttp: restart "control.http", Kind::Text, "\"127.0.0.1:9469\"", "ADDRESS:PORT or unix:PATH, empty = off",
            "where /metrics, /livez and /readyz are served"
            => |d, s| draft::http(s, &mut d.control.http);
        ControlHttpExposed: restart "control.http_exposed", Kind::Bool, "false", "",
            "whether control.http may be an address that other machines can reach; anybody there can then read it"
            => |d, s| s.put(&mut d.http_exposed);
        ControlSocket: restart "control.socket", Kind::Text, "\"/run/fenxi/ctl.sock\"", "path, empty = off",
            "the Unix socket of `fenxi ctl`; root and the user of the service may use it"
            => |d, s| draft::socket(s, &mut d.control.socket);
        ControlReadyWithoutInterfaces: restart "control.ready_without_interfaces", Kind::Bool, "false", "",
            "whether /readyz stays 200 while all interfaces are down or gone (mode inline: one of them)"
            => |d, s| s.put(&mut d.control.ready_without_interfaces);

        ProcessSandbox: restart "process.sandbox", Kind::Bool, "true", "",
            "whether `fenxi run` drops all rights that it no longer needs after its start: capabilities, new programs, new \
             TCP, and writing outside the folders of records, profiles and sockets"
            => |d, s| s.put(&mut d.sandbox);

        LogLevel: live "log.level", Kind::Text,
            "\"info\"", "off, error, warn, info, debug or trace; by target: info,fenxi::sinks::mark=debug",
            "what `fenxi run` logs; `fenxi ctl log` changes it at run time, and FENXI_LOG is short for FENXI_LOG_LEVEL"
            => |d, s| draft::log_level(s, &mut d.log.level);
        LogTo: restart "log.to", Kind::OneOf(LogTo::NAMES), "\"auto\"", "",
            "auto: the journal if stderr leads there, as under systemd, otherwise lines on stderr"
            => |d, s| s.put(&mut d.log.to);
    }
}
