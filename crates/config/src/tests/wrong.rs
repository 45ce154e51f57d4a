//! Configurations with one mistake each, and their error messages.

use super::load;

/// A configuration that is wrong in one way, and what its only message must contain.
struct Bad {
    file: &'static str,
    sets: &'static [&'static str],
    says: &'static [&'static str],
}

const fn bad(file: &'static str, says: &'static [&'static str]) -> Bad {
    Bad { file, sets: &[], says }
}

const fn bad_set(set: &'static [&'static str], says: &'static [&'static str]) -> Bad {
    Bad { file: "", sets: set, says }
}

#[test]
fn each_wrong_configuration_gets_one_clear_line() {
    let cases = [
        // Not TOML.
        bad("[flow]\nk = = 3", &["c.toml:2:5: not TOML"]),
        bad("[flow\nk = 3", &["c.toml:1:6: not TOML", "]"]),
        bad("[flow]\nk = 1\nk = 2", &["c.toml:3:1: not TOML", "duplicate key"]),
        bad("[flow]\nk = 3 4\n[io]\nburst = [1,", &["c.toml:2:5: not TOML"]),
        // Text that is not what it should be.
        bad(
            "[log]\nlevel = \"info,fenxi::sinks::mark=loud\"",
            &["log.level", "c.toml:2", "fenxi::sinks::mark=loud", "expected off, error"],
        ),
        bad(
            "[hosts]\nnetworks = [\"10.0.0.0/8\", \"lan\"]",
            &["hosts.networks", "c.toml:2", "\"lan\" is no network"],
        ),
        bad(
            "[xdp]\nto_host = [\"10.0.0.1\", \"eth0\"]",
            &["xdp.to_host", "c.toml:2", "\"eth0\" is no address"],
        ),
        bad(
            "[xdp]\nframe_bytes = 3000",
            &["c.toml:2: xdp.frame_bytes: found 3000, expected a power of two from 2048 to 4096"],
        ),
        bad(
            "[io]\ncapture = \"first\"\nbackend = \"af_xdp\"",
            &[
                "io.capture = \"first\" (c.toml:2) with io.backend = \"af_xdp\" (c.toml:3): \
                 impossible combination: this \
                 backend hands out every packet",
                "set io.backend = \"af_packet\", or io.capture = \"all\"",
            ],
        ),
        bad(
            "[io]\nmode = \"inline\"\ninterfaces = [\"a\", \"b\"]\ncapture = \"kernel\"",
            &["io.capture = \"kernel\" (c.toml:4) with io.mode = \"inline\" (c.toml:2): \
                 impossible combination: inline forwards every packet itself"],
        ),
        bad(
            "[io]\nmode = \"mark\"\n[tag]\nin_kernel = true",
            &[
                "tag.in_kernel = true (c.toml:4) with io.mode = \"mark\" (c.toml:2) with \
                 io.capture = \"first\" (default of mode mark): no effect",
                "use mode mark and io.capture = \"kernel\", or leave tag.in_kernel out",
            ],
        ),
        bad(
            "[io]\nmode = \"mark\"\nbackend = \"af_xdp\"",
            &[
                "io.backend = \"af_xdp\" (c.toml:3) with io.mode = \"mark\" (c.toml:2): impossible \
                 combination",
                "set io.backend = \"af_packet\"",
            ],
        ),
        bad(
            "[io]\ninterfaces = [\"a\", \"b\"]\nmode = \"inline\"\n[policy]\nmirror = \"b\"",
            &[
                "policy.mirror = \"b\" (c.toml:5) with io.interfaces = [\"a\", \"b\"] (c.toml:2): \
                 impossible combination",
                "name another interface",
            ],
        ),
        bad("[records]\npath = \"-\"", &["records.path", "c.toml:2", "fenxi run --flows -"]),
        // Unknown names.
        bad(
            "[flow]\nidle_timeout = 3",
            &["c.toml:2: unknown key flow.idle_timeout", "did you mean flow.idle_timeout_s?"],
        ),
        bad("\nk = 3", &["c.toml:2: unknown key k", "did you mean flow.k?"]),
        bad(
            "[flow]\nphi = 0.1",
            &["c.toml:2: unknown key flow.phi", "did you mean analytics.phi?"],
        ),
        bad(
            "[io]\n[flwo]\nk = 3\nk2 = 3",
            &["c.toml:2: unknown section [flwo]", "did you mean [flow]?"],
        ),
        bad("[io]\n[colour]\nred = 3", &["c.toml:2: unknown section [colour]"]),
        bad("flow = 3", &["c.toml:1: flow is a section"]),
        bad("[[flow]]\nk = 3", &["c.toml:1: flow is a section"]),
        bad_set(&["flow.kk=3"], &["--set: unknown key flow.kk", "did you mean flow.k?"]),
        bad_set(&["flow.k"], &["--set: flow.k: expected key=value"]),
        // Wrong types.
        bad(
            "[flow]\nk = \"ten\"",
            &["c.toml:2: flow.k: found \"ten\", expected an integer from 1 to 32 (packets)"],
        ),
        bad("[flow]\nk = 1.5", &["c.toml:2: flow.k: found 1.5, expected an integer"]),
        bad("[flow]\nk.x = 1", &["c.toml:2: flow.k: found a table, expected an integer"]),
        bad("[flow]\nend_on_fin_rst = 1", &["found 1, expected true or false"]),
        bad(
            "[flow]\nhash = \"keyd\"",
            &["found \"keyd\", expected one of \"keyed\", \"fenxi\"", "did you mean \"keyed\"?"],
        ),
        bad(
            "[io]\nbackend = \"afpacket\"",
            &[
                "c.toml:2: io.backend: found \"afpacket\", expected one of \"af_packet\", \
                 \"af_xdp\", \"dpdk\"",
                "did you mean \"af_packet\"?",
            ],
        ),
        bad(
            "[model]\npath = 2026-11-20",
            &["found the date or time 2026-11-20, expected text (path)"],
        ),
        bad("[analytics]\nphi = \"a\"", &["found \"a\", expected a number from 0 to 0.5"]),
        bad(
            "[analytics]\nbatch_sizes = 8",
            &["found 8, expected a list of 1 to 16 integers from 1 to 16384 (series)"],
        ),
        bad("[analytics]\nbatch_sizes = []", &["found an empty list, expected a list"]),
        bad("[analytics]\nbatch_sizes = [8, \"x\"]", &["found \"x\" in the list, expected a list"]),
        bad("[accel]\ndevices = \"cpu\"", &["found \"cpu\", expected a list of texts"]),
        bad("[accel]\ndevices = [1]", &["found 1 in the list, expected a list of texts"]),
        bad_set(&["flow.k=1O"], &["--set: flow.k: found \"1O\", expected an integer"]),
        bad_set(&["accel.devices=[cpu]"], &["--set: accel.devices: [cpu] is not a TOML value"]),
        // Out of range.
        bad("[flow]\nk = 0", &["flow.k: found 0, expected an integer from 1 to 32 (packets)"]),
        bad(
            "[flow]\n\nidle_timeout_s = -1",
            &["c.toml:3:", "found -1, expected an integer from 0 to 32000 (seconds, 0 = off)"],
        ),
        bad(
            "[flow]\nk = 99999999999999999999",
            &["c.toml:2: flow.k: found 99999999999999999999, expected an integer"],
        ),
        bad("[flow]\nhash_seed = -5", &["found -5, expected an integer from 0 upwards"]),
        bad("[flow]\nbuckets = 12", &["found 12, expected 0 or a power of two from 8 to 16777216"]),
        bad(
            "[flow]\nbuckets = 64\nmax_flows = 1000",
            &["flow.buckets = 64 (c.toml:2) with flow.max_flows = 1000 (c.toml:3): impossible \
                 combination"],
        ),
        bad("[flow]\nbuckets = 4", &["found 4, expected 0 or a power of two"]),
        bad("[ring]\nslots = 0", &["found 0, expected a power of two from 16 to 1048576 (series)"]),
        bad(
            "[analytics]\ntimeout_ms = nan",
            &["found nan, expected a number from 0.1 to 1000 (milliseconds)"],
        ),
        bad("[analytics]\nphi = 1", &["found 1, expected a number from 0 to 0.5"]),
        bad("[analytics]\nbatch_sizes = [0]", &["found 0 in the list"]),
        bad(
            "[analytics]\nbatch_sizes = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
            &["found a list of 17, expected"],
        ),
        // DSCP.
        bad(
            "[tag]\ndscp = \"EF\"",
            &["c.toml:2: tag.dscp: found \"EF\", expected a table of label = DSCP"],
        ),
        bad(
            "[tag.dscp]\nTLS = \"AF44\"",
            &["c.toml:2: tag.dscp.TLS: found \"AF44\", expected a DSCP name", "did you mean"],
        ),
        bad("[tag.dscp]\nHTTP = 3\nTLS = 64", &["c.toml:3: tag.dscp.TLS: found 64", "0 to 63"]),
        bad_set(
            &["tag.dscp.TLS=ef"],
            &["--set: tag.dscp.TLS: found \"ef\"", "did you mean \"EF\"?"],
        ),
        // Combinations.
        bad(
            "[cache]\nprefix = 11",
            &["cache.prefix = 11 (c.toml:2) with flow.k = 10 (built-in): impossible combination"],
        ),
        Bad {
            file: "[flow]\nk = 5",
            sets: &["cache.prefix=6"],
            says: &["cache.prefix = 6 (--set) with flow.k = 5 (c.toml:2)"],
        },
        bad(
            "[analytics]\nbatch_sizes = [8, 8]",
            &["analytics.batch_sizes = [8, 8] (c.toml:2)", "must ascend"],
        ),
        bad("[analytics]\nbatch_sizes = [16, 8]", &["must ascend"]),
        bad(
            "[analytics]\ntimeout_ms = 60",
            &["analytics.max_wait_ms = 50.0 (built-in) with analytics.timeout_ms = 60.0 \
                 (c.toml:2)"],
        ),
        bad(
            "[pipeline]\nlayout = \"1:1\"",
            &["pipeline.layout = \"1:1\" (c.toml:2): expected a layout F:A:D"],
        ),
        bad_set(
            &["pipeline.layout=1:65:1"],
            &["pipeline.layout = \"1:65:1\" (--set)", "from 1 to 64"],
        ),
        bad(
            "[accel]\ndevices = [\"cpu\", \"cpu\"]",
            &[
                "accel.devices = [\"cpu\", \"cpu\"] (c.toml:2) with pipeline.layout",
                "one device for each of the layout's 1",
            ],
        ),
        bad(
            "[accel]\ndevices = [\"cpu\", \"cpu\"]\n[pipeline]\nlayout = \"1:1:3\"",
            &["one device for each of the layout's 3, or one for all"],
        ),
        bad(
            "[pipeline]\nlayout = \"2:1:2\"\ncores = [0, 1, 2, 3]",
            &["pipeline.cores = [0, 1, 2, 3] (c.toml:3)", "5 threads want one each"],
        ),
        bad(
            "[pipeline]\ninstances = 3\ncores = [0, 1]",
            &["pipeline.instances = 3 (c.toml:2)", "6 threads want one each"],
        ),
        bad(
            "[pipeline]\ncores = [-1]",
            &["pipeline.cores: found -1 in the list, expected a list of 0 to"],
        ),
        // Devices.
        bad(
            "[accel]\ndevices = [\"simulatd\"]",
            &[
                "c.toml:2: accel.devices: unknown device \"simulatd\"",
                "did you mean \"simulated\"?",
            ],
        ),
        bad(
            "[accel]\ndevices = [\"npu1\"]\n[device.npu0]\nprovider = \"qnn\"",
            &["unknown device \"npu1\"", "did you mean \"npu0\"?"],
        ),
        bad(
            "[device.npu]\nproviedr = \"qnn\"",
            &["c.toml:2: unknown key device.npu.proviedr", "did you mean provider?"],
        ),
        bad(
            "\n[device.npu]\nplugin = \"x\"",
            &["c.toml:2: device.npu.provider: is missing", "openvino"],
        ),
        bad(
            "[device.npu]\nprovider = \"qn\"",
            &["c.toml:2: device.npu.provider: found \"qn\", expected one of"],
        ),
        bad(
            "[device.cpu]\ndeadline_ms = -1",
            &["c.toml:2: device.cpu.deadline_ms: found -1, expected a number from 0"],
        ),
        bad(
            "[device.cpu]\nbatch_sizes = [8, 4]",
            &["c.toml:2: device.cpu.batch_sizes = [8, 4]: batch sizes must ascend"],
        ),
        bad("[device.cpu]\nfaults = \"eror=2\"", &["c.toml:2: device.cpu.faults: "]),
        bad(
            "[device.cpu.options]\nthreads = 4",
            &["c.toml:2: device.cpu.options.threads: found 4, expected text"],
        ),
        bad(
            "[device]\nprovider = \"cpu\"",
            &["c.toml:2: device.provider: every device is a table of its own"],
        ),
        bad("device = 1", &["c.toml:1: device is a section of tables: write [device.NAME]"]),
        bad(
            "[devices.npu]\nprovider = \"cpu\"",
            &["c.toml:1: unknown section [devices]", "did you mean [device]?"],
        ),
        bad_set(&["device.npu=1"], &["--set: device.npu: expected device.NAME.KEY=VALUE"]),
        bad_set(
            &["device.cpu.thread=mine"],
            &["--set: device.cpu.thread: found \"mine\", expected one of \"own\", \"shared\""],
        ),
        bad(
            "[model.class_confidence]\nTLS = 1.5",
            &["c.toml:2: model.class_confidence.TLS: found 1.5, expected a number from 0 to 1"],
        ),
    ];
    for Bad { file, sets, says } in cases {
        let lines = load(file, &[], sets).expect_err(file);
        assert_eq!(lines.len(), 1, "{file} {sets:?}: {lines:?}");
        assert!(!lines[0].contains('\n'), "{lines:?}");
        for part in says {
            assert!(lines[0].contains(part), "{file} {sets:?}: {:?} lacks {part:?}", lines[0]);
        }
    }
}
