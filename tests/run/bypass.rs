//! packaging/bypass: the kernel forwards between the interfaces of mode inline while no fenxi does.

use crate::common;
use crate::common::lab::Lab;
use crate::run::inline::{RIGHT, start};

#[test]
fn the_kernel_forwards_while_no_fenxi_does() {
    let Some(lab) = Lab::bridged("bypass", &["ping"]) else {
        return;
    };
    let script = common::root().join("packaging/bypass");
    let bypass = |state: &str| lab.run("box", &format!("{} {state} l r", script.display()));
    let ping = |count: u32| {
        let mut command = lab.command("left", "ping");
        command.args(["-c", &count.to_string(), "-i", "0.1", "-W", "1", RIGHT[0]]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!said.contains("DUP!"), "{said}");
        output.status.success()
    };
    assert!(!ping(1), "the box forwards by itself");
    // Twice, as when a start fails and the service tries again.
    bypass("on");
    bypass("on");
    assert!(ping(3));
    bypass("off");
    bypass("off");
    assert!(!ping(1));
    let live = start(&lab, &[]);
    assert!(ping(3));
    live.terminate(0);
    assert!(!ping(1));
    bypass("on");
    assert!(ping(3));
}
