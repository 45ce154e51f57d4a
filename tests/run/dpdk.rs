//! Devices through DPDK, in a build with the feature `dpdk`: `make dpdk-test`. Any other build says
//! that it has none.

#[cfg(not(feature = "dpdk"))]
mod absent {
    use crate::common;

    #[test]
    fn a_build_without_dpdk_says_which_one_has_it() {
        for (command, code) in [(["check", "--deep"], 69), (["run", "--json"], 78)] {
            let mut words = command.to_vec();
            words.extend(["--set", "io.interfaces=[\"0000:03:00.0\"]"]);
            words.extend(["--set", "io.backend=dpdk", "--set", "control.socket="]);
            words.extend(["--set", "control.http="]);
            words.extend(common::SIMULATED);
            let ended = common::run(common::fenxi(words)).expect_code(code);
            let said = ended.stdout + &ended.stderr;
            let line = "0000:03:00.0: this fenxi was built without DPDK; install the package \
                fenxi-dpdk, or build it with \
                        `make dpdk`";
            assert!(said.contains(line), "{said}");
        }
    }
}

#[cfg(feature = "dpdk")]
mod present {
    use std::path::Path;
    use std::process::Command;

    use crate::common::lab::Lab;
    use crate::common::live::Live;
    use crate::common::{self, fenxi, uninterrupted};
    use crate::run::capture::{listen, seen};
    use crate::run::inline::{RIGHT, all_was_sent, tagged_flows};
    use crate::run::traffic::{
        PROGRAMS, Servers, ask, ask_dns, ask_udp, assert_same_flows, connect, every_label, stream,
        talk,
    };

    /// The settings of a run on these devices in software.
    fn on(interfaces: &[&str], devices: &[String]) -> Vec<String> {
        let base = ["--no-huge", "-m", "256", "--no-pci"].map(str::to_owned);
        let devices = devices.iter().map(|it| format!("--vdev={it}"));
        with_args(interfaces, &base.into_iter().chain(devices).collect::<Vec<_>>())
    }

    /// The settings of a run on these devices, with arguments for DPDK.
    fn with_args<A: AsRef<str>>(interfaces: &[&str], args: &[A]) -> Vec<String> {
        let list = |words: Vec<&str>| serde_json::to_string(&words).unwrap();
        let args = list(args.iter().map(AsRef::as_ref).collect());
        let sets = [
            "io.backend=dpdk".to_owned(),
            format!("io.interfaces={}", list(interfaces.to_vec())),
            format!("dpdk.args={args}"),
        ];
        sets.into_iter().flat_map(|set| ["--set".to_owned(), set]).collect()
    }

    fn words(settings: &[String]) -> Vec<&str> {
        settings.iter().map(String::as_str).collect()
    }

    /// Nothing that DPDK makes for itself is left.
    fn assert_clean(live_pid: u32) {
        for place in ["/dev/hugepages", "/run/dpdk", "/var/run/dpdk"] {
            let left = std::fs::read_dir(place).into_iter().flatten().flatten();
            for file in left {
                let name = file.file_name().into_string().unwrap();
                assert!(
                    !name.contains("rtemap") && !name.contains(&live_pid.to_string()),
                    "{place}: {name}"
                );
            }
        }
    }

    /// A capture gives the same flows and labels as its replay.
    #[test]
    fn a_capture_gives_the_labels_of_its_replay() {
        let dir = tempfile::tempdir().unwrap();
        let [live_path, replay_path] = ["live", "replay"].map(|name| dir.path().join(name));
        let device_of_dpdk = format!("net_pcap0,rx_pcap={}", common::demo().display());
        let mut settings = on(&["net_pcap0"], &[device_of_dpdk]);
        settings.extend(["--flows".to_owned(), live_path.display().to_string()]);
        let live = Live::launch(fenxi::<&str>([]), &words(&settings));
        live.wait_for_packets(common::demo_packets() as u64);
        live.wait_for("each flow has its label", |live| {
            live.metric_sum("fenxi_series_waiting") == 0.0
        });
        let pid = live.pid();
        let ended = live.terminate(0);
        let summary = ended.json();
        assert_eq!(summary["live"]["received"], common::demo_packets(), "{summary}");
        assert!(ended.stderr.contains("sandbox: capabilities"), "{}", ended.stderr);
        assert!(!ended.stderr.contains("EAL"), "{}", ended.stderr);
        assert_clean(pid);
        let mut replay = fenxi(["replay"]);
        replay.arg(common::demo()).arg("--flows").arg(&replay_path);
        common::run(replay).expect_code(0);
        assert_same_flows(&live_path, &replay_path);
    }

    /// ping, DNS, HTTPS, TCP and UDP in both families through two interfaces, and what leaves has
    /// its DSCP.
    #[test]
    fn programs_talk_through_two_devices() {
        let tools = [&PROGRAMS[..], &["tcpdump", "tshark", "ethtool"]].concat();
        let Some(lab) = Lab::bridged("dpdk", &tools) else {
            return;
        };
        // A card computes checksums and merges nothing; the driver over an interface of the kernel
        // knows neither.
        for (host, port) in [("left", "eth"), ("right", "eth"), ("box", "l"), ("box", "r")] {
            lab.run(host, &format!("ethtool -K {port} tx off tso off gso off gro off"));
        }
        let servers = Servers::start(&lab, "right", &[("page", 400_000)]);
        let capture = servers.path("capture");
        let devices = [0, 1].map(|i| format!("net_af_packet{i},iface={}", ["l", "r"][i]));
        let mut settings = on(&["net_af_packet0", "net_af_packet1"], &devices);
        let ef = every_label("tag.dscp", "46");
        settings.extend(["--set", "io.mode=inline", "--set", &ef].map(str::to_owned));
        settings.extend(common::SIMULATED.map(str::to_owned));
        let live = Live::start(&lab, "box", &words(&settings));
        let right = listen(&lab, &live, &capture);
        for address in RIGHT {
            lab.run("left", &format!("ping -c 3 -i 0.1 -W 10 {address}"));
            ask_dns(&lab, "left", address);
            servers.fetch(&lab, "left", address, "page");
            let sockets = ask_udp(&lab, ["left", "right"], address, 12);
            let [near, far] = connect(&lab, ["left", "right"], address);
            talk([&near, &far], 12);
            live.wait_for("each flow has its label", |live| {
                live.metric_sum("fenxi_series_waiting") == 0.0
            });
            ask(&sockets, 100);
            stream(near, far, 200_000);
        }
        right.finish(&live);
        // By each family's UDP and stream, and its question to DNS, which the port names.
        let (tagged, untagged) = tagged_flows(&seen(&capture));
        assert!(tagged >= 6, "{tagged} {untagged}");
        let pid = live.pid();
        assert!(all_was_sent(live) > 500);
        assert_clean(pid);
        // The interfaces are as they were.
        for port in ["l", "r"] {
            let flags = lab.run("box", &format!("ip -o link show dev {port}"));
            assert!(!flags.contains("PROMISC"), "{flags}");
        }
    }

    /// Two flow workers on a device that hashes.
    #[test]
    fn a_device_that_hashes_serves_several_workers() {
        let mut settings = on(&["net_null0"], &["net_null0,size=64".to_owned()]);
        settings.extend(["--set", "pipeline.layout=2:1:1"].map(str::to_owned));
        settings.extend(common::SIMULATED.map(str::to_owned));
        let live = Live::launch(fenxi::<&str>([]), &words(&settings));
        live.wait_for("packets have come", |live| {
            live.metric_sum("fenxi_packets_total") > 100_000.0
        });
        let summary = live.terminate(0).json();
        assert_eq!(summary["live"]["kernel_dropped"], 0, "{summary}");
    }

    /// Runs to its end; the code and the line.
    fn refused(settings: &[String], mode: &str) -> (i32, String) {
        let mut command =
            fenxi(["run", "--json", "--set", "control.http=", "--set", "control.socket="]);
        command.args(settings).args(common::SIMULATED).args(["--set", &format!("io.mode={mode}")]);
        let ended = common::run(command);
        assert!(!ended.stderr.contains("Usage") && !ended.stdout.contains("EAL"), "{ended:?}");
        (ended.code, ended.stderr)
    }

    #[test]
    fn what_cannot_run_is_one_line_with_the_cure() {
        let null = || on(&["net_null0"], &["net_null0".to_owned()]);
        let ring = on(&["net_ring0"], &["net_ring0".to_owned()]);
        let two = ["--set", "pipeline.layout=2:1:1"].map(str::to_owned);
        let few = ["--set", "dpdk.mbufs=1024"].map(str::to_owned);
        let vdev = "net_pcap0,rx_pcap=/nowhere.pcap".to_owned();
        let cases: [(Vec<String>, &str, i32, &[&str]); 8] = [
            (
                null(),
                "mark",
                78,
                &[
                    "io.mode",
                    "impossible combination: this backend takes frames away from the kernel",
                ],
            ),
            (
                with_args(&["net_null0"], &["--no-such"]),
                "tap",
                78,
                &["net_null0: an argument of DPDK: unrecognized option '--no-such'"],
            ),
            (
                with_args(&["net_null0"], &["--help"]),
                "tap",
                78,
                &["argument \"--help\" of DPDK: only prints"],
            ),
            (
                on(&["eth0"], &["net_null0".to_owned()]),
                "tap",
                69,
                &["eth0: no such device of DPDK; there are: net_null0;", "vfio-pci"],
            ),
            (
                on(&["net_pcap0"], &[vdev]),
                "tap",
                69,
                &["net_pcap0: no such device", "/nowhere.pcap"],
            ),
            (
                [ring, two.to_vec()].concat(),
                "tap",
                78,
                &["net_ring0: 2 flow workers", "use one flow worker (pipeline.layout)"],
            ),
            (
                [null(), few.to_vec()].concat(),
                "tap",
                78,
                &["net_null0: 1024 packet buffers;", "dpdk.mbufs"],
            ),
            (
                with_args(
                    &["net_null0"],
                    &["--no-huge", "-m", "2", "--no-pci", "--vdev=net_null0"],
                ),
                "tap",
                69,
                &["net_null0: ", "memory"],
            ),
        ];
        for (settings, mode, code, parts) in cases {
            let (found, said) = refused(&settings, mode);
            let errors: Vec<&str> =
                said.lines().filter(|line| line.starts_with("fenxi: ")).collect();
            assert_eq!((found, errors.len()), (code, 1), "{said}");
            for part in parts {
                assert!(errors[0].contains(part), "{part:?}: {said}");
            }
        }
    }

    /// Without huge pages it says how to get some; with some, where the system gives them, it uses
    /// them and gives them back.
    #[test]
    fn huge_pages_are_asked_for_used_and_given_back() {
        let file = Path::new("/proc/sys/vm/nr_hugepages");
        let count = || -> u32 { std::fs::read_to_string(file).unwrap().trim().parse().unwrap() };
        let before = count();
        let settings = with_args(&["net_null0"], &["--no-pci", "-m", "128", "--vdev=net_null0"]);
        if before == 0 {
            asks_for_huge_pages(&settings);
        }
        let set = |pages: u32| std::fs::write(file, pages.to_string()).is_ok() && count() == pages;
        let has_some = set(before + PAGES);
        let ended = has_some.then(|| std::panic::catch_unwind(|| uses_huge_pages(&settings)));
        set(before);
        match ended {
            Some(ended) => ended.unwrap(),
            None => common::skip(
                "huge_pages_are_asked_for_used_and_given_back",
                "root and 96 huge pages",
            ),
        }
    }

    /// Pages of 2 MiB; more than `-m 128` takes.
    const PAGES: u32 = 96;

    fn asks_for_huge_pages(settings: &[String]) {
        let (code, said) = refused(settings, "tap");
        let cure = "sysctl vm.nr_hugepages=";
        assert!(code == 69 && said.contains(cure), "{code} {said}");
        let mut check = fenxi(["check", "--deep", "--set", "control.http="]);
        check.args(["--set", "control.socket="]).args(settings);
        let checked = common::run(check);
        assert!(checked.stdout.contains(cure), "{checked:?}");
    }

    fn uses_huge_pages(settings: &[String]) {
        let mut all = settings.to_vec();
        all.extend(common::SIMULATED.map(str::to_owned));
        let live = Live::launch(fenxi::<&str>([]), &words(&all));
        let (pid, while_it_runs) = (live.pid(), free_pages());
        live.terminate(0);
        assert!(free_pages() > while_it_runs, "no huge page was in use");
        assert_clean(pid);
    }

    fn free_pages() -> u32 {
        let read =
            || std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        uninterrupted(read).unwrap().trim().parse().unwrap()
    }

    /// Signals end it at once, also where it takes a core for itself.
    #[test]
    fn a_run_that_never_sleeps_ends_when_it_is_told_to() {
        let mut settings = on(&["net_ring0"], &["net_ring0".to_owned()]);
        settings.extend(["--set", "dpdk.sleep_us=0"].map(str::to_owned));
        settings.extend(common::SIMULATED.map(str::to_owned));
        let live = Live::launch(fenxi::<&str>([]), &words(&settings));
        let status = Command::new("kill").arg("-INT").arg(live.pid().to_string()).status();
        assert!(status.unwrap().success());
        live.ended(0);
    }
}
