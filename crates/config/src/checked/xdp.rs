//! The backend `af_xdp`.

use std::net::IpAddr;

use packetio::{XdpMode, XdpSettings, ZeroCopy};

use crate::kind::{Kind, integer, power_of_two};
use crate::section;
use crate::setting::Setting;

section! {
    impl XdpSettings = One "xdp";

    /// io.backend af_xdp: where frames are taken: native, in the driver; generic, in the kernel,
    /// which works with any driver and costs more; auto, in the driver where it can do that
    mode: XdpMode = restart "mode", Kind::OneOf(&["auto", "native", "generic"]), "\"auto\"",
        "" => mode;
    /// io.backend af_xdp: whether the card writes into fenxi's memory: on refuses a driver that
    /// cannot, off has the kernel copy each frame
    zero_copy: ZeroCopy = restart "zero_copy", Kind::OneOf(&["auto", "on", "off"]), "\"auto\"",
        "" => zero_copy;
    /// io.backend af_xdp: whether the kernel says when it needs a system call to go on; false: one
    /// is made for each burst
    need_wakeup: bool = restart "need_wakeup", Kind::Bool, "true", "";
    /// io.backend af_xdp: how long a flow manager without frames asks the driver instead of
    /// waiting for an interrupt; keeps CAP_NET_ADMIN
    busy_poll_us: u32 = restart "busy_poll_us", integer(0, 10_000), "0", "microseconds, 0 = off";
    /// io.backend af_xdp: how many frames may wait in each receive queue of an interface; more are
    /// dropped and counted
    frames: u32 = restart "frames", power_of_two(64, 1 << 20), "4096", "frames";
    /// io.backend af_xdp: memory of each frame: 2048 for an MTU of up to 1770, 4096 for up to 3818
    frame_bytes: u32 = restart "frame_bytes", power_of_two(2048, 4096), "2048", "bytes";
    /// io.backend af_xdp: addresses of this machine: frames to them without a VLAN tag, and ARP
    /// and neighbour solicitations for them, go to the kernel instead of fenxi
    to_host: Vec<IpAddr> = restart "to_host", Kind::TextList { least: 0 }, "[]",
        "addresses" => addresses;
}

fn mode(setting: &Setting) -> Result<XdpMode, String> {
    Ok(match setting.get::<String>()?.as_str() {
        "native" => XdpMode::Native,
        "generic" => XdpMode::Generic,
        _ => XdpMode::Auto,
    })
}

fn zero_copy(setting: &Setting) -> Result<ZeroCopy, String> {
    Ok(match setting.get::<String>()?.as_str() {
        "on" => ZeroCopy::On,
        "off" => ZeroCopy::Off,
        _ => ZeroCopy::Auto,
    })
}

fn addresses(setting: &Setting) -> Result<Vec<IpAddr>, String> {
    setting.list(|name| {
        let wrong = |_| format!("{name:?} is no address; write it as 192.168.0.1 or 2001:db8::1");
        name.parse().map_err(wrong)
    })
}
