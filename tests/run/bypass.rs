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
    let ping_within = |count: &str, seconds: &str| {
        let mut command = lab.command("left", "ping");
        command.args(["-c", count, "-i", "0.1", "-W", seconds, RIGHT[0]]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!said.contains("DUP!"), "{said}");
        output.status.success()
    };
    let passes = || ping_within("3", "10");
    let is_cut = || !ping_within("1", "1");
    assert!(is_cut(), "the box forwards by itself");
    // Twice, as when a start fails and the service tries again.
    bypass("on");
    bypass("on");
    assert!(passes());
    bypass("off");
    bypass("off");
    assert!(is_cut());
    let live = start(&lab, &[]);
    assert!(passes());
    live.terminate(0);
    assert!(is_cut());
    bypass("on");
    assert!(passes());
}
