//! What cannot be opened is refused by name, with the cure, and the interface stays as it was.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::*;
use crate::af_xdp::AF_XDP;
use crate::open::probe;

fn error_of(settings: PortSettings) -> OpenError {
    let opened = open(&AF_XDP, std::slice::from_ref(&settings), 1);
    opened.err().expect("it is refused")
}

/// Neither program nor promiscuous mode.
fn assert_untouched(netns: &Netns, interface: &str) {
    wait_for_closed();
    let shown = netns.run(&format!("ip -d link show dev {interface}"));
    assert!(!shown.contains("xdp") && shown.contains("promiscuity 0"), "{shown}");
}

#[test]
fn an_interface_that_another_program_has_is_refused() {
    let Some(netns) = pair("an_interface_that_another_program_has_is_refused") else {
        return;
    };
    netns.inside(|| {
        let first = open_one(settings("b0"));
        let error = error_of(settings("b0"));
        assert!(matches!(error, OpenError::InUse { .. }));
        assert_eq!(
            error.to_string(),
            "b0: another XDP program is attached; `ip link show dev b0` shows it; end the program \
             that has it, or `ip link set dev b0 xdp off`"
        );
        // The other one's mode does not matter.
        let mut generic = settings("b0");
        generic.own.xdp.mode = XdpMode::Generic;
        netns.run("ethtool -K b0 gro off");
        assert!(matches!(error_of(generic), OpenError::InUse { .. }));
        // It is not disturbed.
        let Opened { mut rx, .. } = first;
        send("a0", numbered(10));
        assert!(take(&mut *rx, 10) == numbered(10));
    });
    assert_untouched(&netns, "b0");
}

#[test]
fn a_socket_of_another_program_is_named_by_its_queue() {
    let Some(netns) = pair("a_socket_of_another_program_is_named_by_its_queue") else {
        return;
    };
    netns.inside(|| {
        let _sender = open_tx(&AF_XDP, "b0").unwrap();
        let error = error_of(settings("b0")).to_string();
        assert!(error.starts_with("b0: another socket has its queue 0; "), "{error}");
        assert_untouched(&netns, "b0");
    });
}

#[test]
fn an_interface_that_does_not_suit_is_refused_with_the_cure() {
    let Some(netns) = pair("an_interface_that_does_not_suit_is_refused_with_the_cure") else {
        return;
    };
    let refused = |line: &str, change: &(dyn Fn(&mut PortSettings) + Sync)| {
        netns.run(line);
        netns.inside(|| {
            let mut settings = settings("b0");
            change(&mut settings);
            let error = error_of(settings);
            assert!(matches!(error, OpenError::Unsuitable { .. }), "{error}");
            error.to_string()
        })
    };
    let line = refused("ip link set b0 mtu 3000", &|_| {});
    assert_eq!(
        line,
        "b0: its MTU is 3000, and a frame of 2048 bytes has room for 1770; set xdp.frame_bytes = \
         4096"
    );
    let line = refused("ip link set b0 mtu 9000", &|it| it.own.xdp.frame_bytes = 4096);
    assert!(line.contains("`ip link set dev b0 mtu 3818`"), "{line}");
    let line = refused("ip link set b0 mtu 1500; ip link set a0 mtu 9000", &|_| {});
    assert!(line.contains("no XDP with the MTU that it or its peer has"), "{line}");
    let line = refused("ip link set a0 mtu 1500; ethtool -K b0 rxvlan on", &|_| {});
    assert_eq!(
        line,
        "b0: it strips VLAN tags (rxvlan), and XDP cannot put them back; ethtool -K b0 rxvlan off"
    );
    let line = refused("ethtool -K b0 rxvlan off gro on", &|it| {
        it.own.xdp.mode = XdpMode::Generic;
    });
    assert_eq!(
        line,
        "b0: it merges packets (gro) before XDP sees them, and they are longer than a frame; \
         ethtool -K b0 gro off"
    );
    assert_untouched(&netns, "b0");
}

#[test]
fn a_driver_without_xdp_is_refused_in_native_mode_and_served_in_generic_mode() {
    const TEST: &str = "a_driver_without_xdp_is_refused_in_native_mode_and_served_in_generic_mode";
    let Some(netns) = pair(TEST) else { return };
    // A bridge has none.
    netns.run("ip link add br0 type bridge && ip link set br0 up && ethtool -K br0 gro off");
    netns.inside(|| {
        let mut of_bridge = settings("br0");
        of_bridge.own.xdp.mode = XdpMode::Native;
        assert_eq!(
            error_of(of_bridge.clone()).to_string(),
            "br0: its driver has no XDP; set xdp.mode = \"generic\", or io.backend = \"af_packet\""
        );
        of_bridge.own.xdp.mode = XdpMode::Auto;
        let port = open_one(of_bridge);
        assert_eq!(port.how.unwrap(), "br0: XDP in generic mode, the kernel copies, 1 queue");
    });
}

#[test]
fn what_is_missing_is_named() {
    let Some(netns) = pair("what_is_missing_is_named") else {
        return;
    };
    let with = |kept: CapabilitySet| {
        netns.inside(|| {
            let sets = CapabilitySets {
                effective: kept,
                permitted: kept,
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, sets).unwrap();
            let opened = open(&AF_XDP, &[settings("b0")], 1);
            opened.err().map(|error| error.to_string())
        })
    };
    use CapabilitySet as Set;
    let program = "b0: permission denied; XDP programs need CAP_BPF and CAP_NET_ADMIN";
    assert_eq!(with(Set::NET_RAW | Set::NET_ADMIN).as_deref(), Some(program));
    assert_eq!(with(Set::NET_RAW | Set::BPF).as_deref(), Some(program));
    assert_eq!(
        with(Set::NET_ADMIN | Set::BPF).as_deref(),
        Some("b0: permission denied; XDP sockets need CAP_NET_RAW")
    );
    let enough = Set::NET_ADMIN | Set::BPF | Set::NET_RAW;
    // Only those without CAP_IPC_LOCK have a limit, so it does not matter to other tests.
    let limit = Rlimit { current: Some(1 << 20), maximum: None };
    let maximum = getrlimit(Resource::Memlock).maximum;
    setrlimit(Resource::Memlock, Rlimit { maximum, ..limit }).unwrap();
    let line = with(enough).unwrap();
    assert!(
        line.starts_with("b0: 5242880 bytes for frames are more than may be locked in memory; "),
        "{line}"
    );
    assert_eq!(with(enough | Set::IPC_LOCK), None);
    assert_untouched(&netns, "b0");
}

#[test]
fn settings_and_names_are_checked() {
    let Some(netns) = pair("settings_and_names_are_checked") else {
        return;
    };
    netns.inside(|| {
        let with = |change: &dyn Fn(&mut XdpSettings)| {
            let mut settings = settings("b0");
            change(&mut settings.own.xdp);
            settings
        };
        for bad in [
            with(&|it| it.frames = 100),
            with(&|it| it.frame_bytes = 1024),
            with(&|it| it.to_host = vec!["10.0.0.1".parse().unwrap(); 65]),
        ] {
            assert!(matches!(error_of(bad), OpenError::BadSetting { .. }));
        }
        probe(&AF_XDP, &settings("b0")).unwrap();
        for wrong in [PortSettings::new("b1"), with(&|it| it.frames = 3)] {
            let probed = probe(&AF_XDP, &wrong).unwrap_err();
            assert_eq!(probed.to_string(), error_of(wrong).to_string());
        }
        assert_untouched(&netns, "b0");
    });
}
