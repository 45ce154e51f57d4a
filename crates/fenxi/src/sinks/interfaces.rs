//! Where flows come in and leave, and the DSCPs of their packets, by the mode of the run.

use std::sync::Arc;

use config::Config;
use config::checked::{IoMode, MarkAs};
use flowmgr::HeadersSeen;

/// The interfaces of a run. By default, as in a replay, none are known.
#[derive(Debug, Clone, Default)]
pub struct Interfaces {
    /// In the order of their ports.
    pub names: Arc<[String]>,
    is_inline: bool,
    sets_dscp: bool,
}

impl Interfaces {
    /// The interfaces of a live run, whose ports may label in the kernel.
    pub fn new(config: &Config, labels_in_kernel: bool) -> Interfaces {
        let is_inline = config.io.mode == IoMode::Inline;
        let is_by_mark = config.io.mode == IoMode::Mark
            && (config.mark.holds == MarkAs::Dscp || config.tag.in_kernel && labels_in_kernel);
        Interfaces {
            names: config.io.interfaces.clone().into(),
            is_inline,
            sets_dscp: is_inline || is_by_mark,
        }
    }

    /// Numbers of the interfaces where a flow comes in and leaves, from 0. In mode inline it leaves
    /// by the other one; in mode mark by the one where its packets were seen again.
    pub fn of(&self, headers: &HeadersSeen) -> [Option<usize>; 2] {
        let out_port = match (self.is_inline, headers.in_port) {
            (true, 1) => 2,
            (true, 2) => 1,
            _ => headers.out_port,
        };
        let number = |port: u8| usize::from(port).checked_sub(1);
        [headers.in_port, out_port].map(|port| number(port).filter(|it| *it < self.names.len()))
    }

    /// The DSCP that a flow's packets get.
    pub fn dscp_set(&self, headers: &HeadersSeen) -> Option<u8> {
        headers.dscp_set().filter(|_| self.sets_dscp)
    }

    pub fn dscps(&self, headers: &HeadersSeen) -> Dscps {
        Dscps { seen: headers.dscp_seen(), set: self.dscp_set(headers) }
    }
}

/// The DSCPs of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dscps {
    /// The first packet's, as it came.
    pub seen: u8,
    /// What its packets get.
    pub set: Option<u8>,
}
