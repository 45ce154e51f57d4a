//! What can happen, and random lists of it. A list that fails is shrunk and printed in these words.

use std::time::Duration;

use analytics::{CacheConfig, Policy};
use proptest::prelude::*;

use crate::device::PREFIX;

/// Packets in a series.
pub const K: usize = 3;

/// Flows that talk have the numbers below this; those above only knock.
pub const TALKERS: u8 = 48;
/// All flows. A number is half an address, so it is below 128.
pub const FLOWS: u8 = 120;

/// How the program is set up.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The paper's hash, under which all flows here have one bucket; else the keyed one.
    pub collides: bool,
    pub max_flows: usize,
    pub ring_slots: usize,
    pub devices: usize,
    /// Devices have a deadline; without one a silent device is waited for.
    pub has_deadline: bool,
    pub policy: Policy,
    pub cache: CacheConfig,
    /// There is an active timeout.
    pub reports: bool,
    /// Flows that begin mid-stream are asked about.
    pub asks_midstream: bool,
    /// Half-open flows and established connections have timeouts of their own.
    pub has_more_timeouts: bool,
    /// The server's port names flows with their first packets.
    pub ports_first: bool,
    pub end: End,
}

/// How it ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Traffic ends; all flows fall silent and are over; then the program is stopped.
    Silence,
    /// It is stopped, and waits for labels that are on their way.
    Stop,
    /// It is stopped, and waits for nothing.
    StopAtOnce,
}

/// A packet of a flow. The client begins, unless another kind comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Syn,
    SynAck,
    /// From the client.
    Data,
    /// From the server.
    Answer,
    Fin,
    FinOfServer,
    Rst,
}

/// What a device answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Good,
    Error,
    Nan,
    TooFew,
    NoClass,
}

/// Something happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// A handshake, where the protocol has one, and data in turn, `packets` packets in one burst.
    Talk { flow: u8, packets: u8 },
    /// The same, after which both sides close it.
    Call { flow: u8, packets: u8 },
    /// Data of the client that nobody answers.
    OneWay { flow: u8, packets: u8 },
    /// Data in turn without a handshake.
    Midstream { flow: u8, packets: u8 },
    /// Single packets of one flow, in a burst.
    Send { flow: u8, kinds: Vec<Kind> },
    /// SYNs from `flows` clients that nobody answers.
    Scan { from: u8, flows: u8 },
    /// `flows` connections that were there before, each with packets both ways.
    Crowd { from: u8, flows: u8 },
    /// Packets that belong to no flow.
    Noise,
    /// Time passes.
    Pause { ms: u32 },
    /// The wall clock is set.
    Jump { seconds: i64 },
    /// The flow manager's thread finds no packets.
    Idle,
    /// The analytics thread makes this many rounds.
    Rounds(u8),
    /// A device answers to the batch that it has, if any.
    Answer { device: u8, reply: Reply },
    /// A device will refuse its next batch.
    Refuse { device: u8 },
    /// A device answers at once from now on, or no longer.
    Will { device: u8, is_willing: bool },
    /// Another model comes in.
    Swap,
    /// Another model is prepared and aborted.
    StandDown,
    /// Other settings of both managers: the number of a set of settings.
    Reload(u8),
    /// Waiting records and marks are written.
    Settle,
}

pub fn plans() -> impl Strategy<Value = Plan> {
    let table = (
        any::<bool>(),
        prop::sample::select(vec![8usize, 16, 40, 64]),
        prop::sample::select(vec![2usize, 4, 8]),
        any::<[bool; 4]>(),
    );
    let series = (1..=2usize, any::<bool>(), policies(), caches());
    let ends = prop::sample::select(vec![End::Silence, End::Stop, End::StopAtOnce]);
    (table, series, ends).prop_map(|(table, series, end)| Plan {
        collides: table.0,
        max_flows: table.1,
        ring_slots: table.2,
        reports: table.3[0],
        asks_midstream: table.3[1],
        has_more_timeouts: table.3[2],
        ports_first: table.3[3],
        devices: series.0,
        has_deadline: series.1,
        policy: series.2,
        cache: series.3,
        end,
    })
}

fn policies() -> impl Strategy<Value = Policy> {
    prop::sample::select((0..3).map(policy).collect::<Vec<_>>())
}

/// One of three.
pub fn policy(number: u8) -> Policy {
    let timeout = Duration::from_millis(1);
    match number % 3 {
        0 => Policy::None,
        1 => Policy::Timeout { timeout },
        _ => Policy::CarryOver { timeout, phi: 0.2, max_wait: 4 * timeout },
    }
}

fn caches() -> impl Strategy<Value = CacheConfig> {
    prop::sample::select((0..4).map(cache).collect::<Vec<_>>())
}

/// One of four: none, of the model's prefix, exact, and with room for two answers only.
pub fn cache(number: u8) -> CacheConfig {
    let (prefix, entries, audit) = match number % 4 {
        0 => (0, 0, 0.0),
        1 => (PREFIX, 64, 0.0),
        2 => (K, 64, 0.5),
        _ => (PREFIX, 2, 0.25),
    };
    CacheConfig { prefix, entries, audit }
}

pub fn lists() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event(), 1..70)
}

fn event() -> impl Strategy<Value = Event> {
    let flow = 0..TALKERS;
    let kinds = prop::sample::select(vec![
        Kind::Syn,
        Kind::SynAck,
        Kind::Data,
        Kind::Answer,
        Kind::Fin,
        Kind::FinOfServer,
        Kind::Rst,
    ]);
    let replies = prop::sample::select(vec![
        Reply::Good,
        Reply::Good,
        Reply::Good,
        Reply::Good,
        Reply::Good,
        Reply::Error,
        Reply::Nan,
        Reply::TooFew,
        Reply::NoClass,
    ]);
    prop_oneof![
        // A few flows often, so that they end, begin again, and are labelled in between.
        8 => (0..6u8, 1..8u8).prop_map(|(flow, packets)| Event::Talk { flow, packets }),
        8 => (flow.clone(), 3..7u8).prop_map(|(flow, packets)| Event::Talk { flow, packets }),
        5 => (0..6u8, 2..7u8).prop_map(|(flow, packets)| Event::Call { flow, packets }),
        2 => (flow.clone(), 1..6u8).prop_map(|(flow, packets)| Event::OneWay { flow, packets }),
        2 => (flow, 1..6u8).prop_map(|(flow, packets)| Event::Midstream { flow, packets }),
        6 => (0..6u8, prop::collection::vec(kinds, 1..5))
            .prop_map(|(flow, kinds)| Event::Send { flow, kinds }),
        2 => (TALKERS..FLOWS, 1..60u8).prop_map(|(from, flows)| Event::Scan { from, flows }),
        1 => (0..16u8, 1..48u8).prop_map(|(from, flows)| Event::Crowd { from, flows }),
        1 => Just(Event::Noise),
        6 => (0..8u32).prop_map(|ms| Event::Pause { ms }),
        2 => (500..6000u32).prop_map(|ms| Event::Pause { ms }),
        1 => prop::sample::select(vec![-86_400i64, -3600, -5, 5, 3600, 32_768, 65_536])
            .prop_map(|seconds| Event::Jump { seconds }),
        2 => Just(Event::Idle),
        12 => (1..4u8).prop_map(Event::Rounds),
        8 => (0..2u8, replies).prop_map(|(device, reply)| Event::Answer { device, reply }),
        1 => (0..2u8).prop_map(|device| Event::Refuse { device }),
        2 => (0..2u8, any::<bool>())
            .prop_map(|(device, is_willing)| Event::Will { device, is_willing }),
        2 => Just(Event::Swap),
        1 => Just(Event::StandDown),
        1 => (0..12u8).prop_map(Event::Reload),
        8 => Just(Event::Settle),
    ]
}
