//! What the worker under test works with: flows, a port that is told what comes, an egress and a
//! sink that say what left.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use dataplane::Error;
use dataplane::egress::Egress;
use dataplane::inline::FlowManager;
use dataplane::rules::RulesInForce;
use dataplane::sink::Sink;
use flowmgr::record::Record;
use flowmgr::verdict::Verdict;
use flowmgr::{Fate, Packet};
use packetio::{Burst, Frame, Received, Rx, RxCounts, RxError};
use policy::{Key, UDP};

use crate::small_table::config;

/// Flows that a test has, more than can be looked up again in one burst.
pub const FLOWS: usize = 80;
/// What [`Sent`] says of a packet that was dropped, instead of a DSCP.
pub const DROPPED: u8 = 64;

/// The tuple of a flow's first packet.
pub fn key(flow: usize) -> Key<u32> {
    Key {
        source: 0x0a00_0000 + flow as u32 % 16,
        destination: 0x0a00_0100 + flow as u32 / 16,
        source_port: 4000 + flow as u16 % 3,
        destination_port: 53,
        protocol: UDP,
        in_port: 0,
    }
}

/// A packet of a flow, forward or in reverse, with DSCP 0.
pub fn frame((flow, is_reverse): (usize, bool)) -> Vec<u8> {
    let key = key(flow);
    let (from, to) = ((key.source, key.source_port), (key.destination, key.destination_port));
    let (from, to) = if is_reverse { (to, from) } else { (from, to) };
    let mut frame = vec![0; 60];
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&46_u16.to_be_bytes());
    frame[23] = UDP;
    frame[26..30].copy_from_slice(&from.0.to_be_bytes());
    frame[30..34].copy_from_slice(&to.0.to_be_bytes());
    frame[34..36].copy_from_slice(&from.1.to_be_bytes());
    frame[36..38].copy_from_slice(&to.1.to_be_bytes());
    frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
    frame
}

/// A port that has a burst when the test says so, and ends with the test.
pub struct Told {
    bursts: Receiver<Vec<Vec<u8>>>,
    data: Vec<u8>,
    frames: Vec<Frame>,
    time_us: i64,
}

impl Told {
    pub fn new(bursts: Receiver<Vec<Vec<u8>>>) -> Told {
        Told { bursts, data: Vec::new(), frames: Vec::new(), time_us: 1_700_000_000_000_000 }
    }
}

impl Rx for Told {
    fn receive(&mut self, _: usize) -> Result<Received<'_>, RxError> {
        // Between two looks the worker takes other rules.
        let told = match self.bursts.recv_timeout(Duration::from_micros(100)) {
            Ok(told) => told,
            Err(RecvTimeoutError::Timeout) => return Ok(Received::Nothing),
            Err(RecvTimeoutError::Disconnected) => return Ok(Received::End),
        };
        self.data.clear();
        self.frames.clear();
        for bytes in told {
            self.time_us += 10;
            self.frames.push(Frame {
                at: self.data.len(),
                captured: bytes.len() as u32,
                wire: bytes.len() as u32,
                time_us: self.time_us,
                link: 1,
                ..Frame::default()
            });
            self.data.extend(bytes);
        }
        Ok(Received::Burst(Burst::new(&mut self.data, &self.frames)))
    }

    fn name(&self) -> &str {
        "told"
    }

    fn counts(&mut self) -> RxCounts {
        RxCounts::default()
    }
}

/// Says what each packet left with.
pub struct Sent(pub Sender<Vec<u8>>);

impl Egress for Sent {
    fn send(
        &mut self,
        _: usize,
        burst: &Burst<'_>,
        _: &[Packet],
        fates: &[Fate],
        _: &FlowManager,
    ) -> Result<(), Error> {
        let left = fates.iter().enumerate().map(|(at, fate)| {
            let dscp = burst.bytes(at)[15] >> 2;
            match fate.verdict {
                Verdict::Dropped => DROPPED,
                _ => dscp,
            }
        });
        self.0.send(left.collect()).unwrap();
        Ok(())
    }
}

/// Says which rule each record has, by the order in which rules were written.
pub struct Recorded {
    rules: Option<RulesInForce>,
    records: Sender<(usize, Option<u32>)>,
}

impl Recorded {
    pub fn new(records: Sender<(usize, Option<u32>)>) -> Recorded {
        Recorded { rules: None, records }
    }
}

impl Sink for Recorded {
    fn take_rules(&mut self, rules: &RulesInForce) {
        self.rules = Some(rules.clone());
    }

    fn record(&mut self, record: &Record) {
        let (Record::Flow(flow), Some(rules)) = (record, &self.rules) else {
            return;
        };
        let known = flow.rule.and_then(|rule| rules.known(rule));
        let name = &flow.flow;
        let is_of = |key: Key<u32>| {
            let end = |address: u32, port| (IpAddr::from(Ipv4Addr::from(address)), port);
            let ends =
                [end(key.source, key.source_port), end(key.destination, key.destination_port)];
            ends.contains(&name.source) && ends.contains(&name.destination)
        };
        let of = (0..FLOWS).find(|&it| is_of(key(it))).unwrap();
        let known = known.map(|rule| rule.order);
        self.records.send((of, known)).unwrap();
    }
}

pub fn manager() -> FlowManager {
    let (producer, _) = cring::ring(256);
    let config = config(128);
    FlowManager::with_parts(config, vec![vec![producer]], None).unwrap()
}
