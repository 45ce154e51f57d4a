//! The backends over which a test runs, and what each wants of the interfaces.

use crate::common::lab::Lab;

/// How fenxi reads interfaces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Over {
    Packet,
    Xdp,
}

impl Over {
    /// Both.
    pub const ALL: [Over; 2] = [Over::Packet, Over::Xdp];

    /// The setting that asks for it.
    pub fn args(self) -> [&'static str; 2] {
        match self {
            Over::Packet => ["--set", "io.backend=af_packet"],
            Over::Xdp => ["--set", "io.backend=af_xdp"],
        }
    }

    /// Receive rings that hold few packets.
    pub fn small_rings(self) -> &'static [&'static str] {
        match self {
            Over::Packet => &["--set", "io.blocks=2", "--set", "io.block_bytes=65536"],
            Over::Xdp => &["--set", "xdp.frames=64"],
        }
    }

    /// Makes interfaces, both ends of wires, such as a wire and a card without offloads are to XDP.
    /// Packet sockets take them as they are.
    pub fn prepare(self, lab: &Lab, host: &str, interfaces: &[&str]) {
        for name in interfaces.iter().filter(|_| self == Over::Xdp) {
            lab.run(
                host,
                &format!(
                    "ip link set dev {name} mtu 1500 && \
                     ethtool -K {name} tx off tso off gso off gro off rxvlan off txvlan off"
                ),
            );
        }
    }

    /// Gives the interfaces of the box a receive queue for each flow manager, as XDP wants them.
    pub fn give_queues(self, lab: &Lab, layout: &str) {
        let queues = layout.split(':').next().unwrap_or("1");
        for (host, name) in [("left", "eth"), ("right", "eth"), ("box", "l"), ("box", "r")] {
            if self == Over::Xdp {
                let current = lab.run(host, &format!("ethtool -l {name} | tail -n 5"));
                if !current.contains(&format!("RX:\t\t{queues}\n")) {
                    lab.run(host, &format!("ethtool -L {name} rx {queues} tx {queues}"));
                }
            }
        }
    }
}
