//! A flow worker: one thread that takes packets from its ports through the flow manager to the
//! egress, and labels and ended flows to the sinks. Replays and live runs use the same worker with
//! other parts.
//!
//! ```text
//! round: make room (replay) ─ a burst from each port ─ process ─ egress
//!        settle: labels and ended flows ─ sinks
//! idle:  let time pass ─ look at the links ─ sleep until there are packets
//! ```
//!
//! In a live run it waits only for packets, and for `SLEEP_MAX` at most, so that labels, timeouts
//! and snapshots get their turn. In a replay by packet time nothing may be shed, so before each
//! burst it waits for room: a ring slot for every series, and an entry for every flow, that the
//! burst may bring.

mod finish;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cring::{Counter, Label, Source, in_words};
use crossbeam_utils::Backoff;
use flowmgr::record::Record;
use flowmgr::{Counted, Effect, Fate, Given, Gso, Key, LABELS_LOOKED_AT, Packet, ServicesChange};
use packetio::{Burst, FlowCounts, FrameAnswer, Notice, Received, Rx, TxCounts};

use crate::Error;
use crate::opening::inline::FlowManager;
use crate::threads::clock::{Clock, clock_set};
use crate::threads::counters::{FlowSnapshot, PortCounters};
use crate::threads::egress::Egress;
use crate::threads::inline;
use crate::threads::label_waker::Prepared;
use crate::threads::look::LookPort;
use crate::threads::recorder::{FlowRecorder, FlowStep};
use crate::threads::rules::{FlowRules, RulesUpdate};
use crate::threads::run::{Event, PAUSE, Run};
use crate::threads::server_actions::ServerActions;
use crate::threads::servers::Portion;
use crate::threads::settings::{SettingsPort, Update};
use crate::threads::sink::Sink;
use crate::threads::snapshot::Publisher;

pub use finish::FlowOutcome;

/// Rounds without packets before the thread sleeps until there are some.
const ROUNDS_BEFORE_SLEEP: u32 = 1;
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// The clock of an idle flow manager lags flow time by this, µs: packets still in the kernel were
/// stamped earlier, and must not be older than the manager's clock.
const LAG_US: i64 = 100_000;
/// Between two looks at links and at the wall clock, µs.
const LOOK_EVERY_US: i64 = 1_000_000;

/// Flows whose counts come with a burst, at most; more only cost memory.
const COUNTED_MAX: usize = 2048;

/// How others reach a flow worker between two bursts. Each is optional.
#[derive(Default)]
pub struct Hooks {
    /// Brings other settings.
    pub settings: Option<SettingsPort>,
    /// Takes snapshots of the counters.
    pub telemetry: Option<Publisher<FlowSnapshot>>,
    /// Copies the memory of servers.
    pub servers: Option<Publisher<Portion>>,
    /// What other programs do with flows to servers; needs rules.
    pub by_server: Option<Arc<ServerActions>>,
    /// Brings other services.
    pub services: Option<SettingsPort<ServicesChange>>,
    /// Shows the flows of the table.
    pub look: Option<LookPort>,
    /// Records what is done to the flow manager.
    pub recorder: Option<Box<dyn FlowRecorder>>,
    /// For series that are answered at once.
    pub inline: inline::Hooks,
}

/// Bounds on the work that a flow worker does at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Packets in a burst; at most a quarter of a ring's slots, since the analytics side makes room
    /// once a ring is three quarters full.
    pub burst: usize,
    /// Live: a received packet reaches the worker within this time.
    pub handover: Duration,
    /// Live: a worker whose ports are all gone for so long ends the run.
    pub give_up_after: Duration,
}

/// The parts of a flow worker.
pub struct Parts {
    /// Number of the flow worker, from 0.
    pub number: usize,
    /// The flow manager.
    pub manager: FlowManager,
    /// The time from which on a label counts, as the manager was configured.
    pub effect: Effect,
    /// The ports that packets come from.
    pub ports: Vec<Box<dyn Rx>>,
    /// Whether a flow belongs to the port where it was first seen, because packets of it are seen
    /// at others as well: several interfaces of one router.
    pub flows_belong_to_ports: bool,
    /// The egress that packets leave by; `None` drops them.
    pub egress: Option<Box<dyn Egress>>,
    /// The consumers of labels and ended flows.
    pub sinks: Vec<Box<dyn Sink>>,
    /// The source of time.
    pub clock: Clock,
    /// How others reach it.
    pub hooks: Hooks,
    /// Rules that are in force from the first packet on.
    pub rules: Option<RulesUpdate>,
    /// State shared with the other threads of the run.
    pub run: Arc<Run>,
    /// Bounds on one round.
    pub limits: Limits,
}

/// The thread's work.
pub struct FlowWorker {
    ports: Vec<Box<dyn Rx>>,
    processor: Processor,
    hooks: Hooks,
    limits: Limits,
    /// The ports' counters at the last snapshot.
    counters: Vec<PortCounters>,
    /// When links and clock were last looked at, in flow time.
    looked_us: i64,
    inline: inline::Served,
    /// When all ports were first seen to be lost; `None` while one is there.
    alone_since: Option<Instant>,
}

/// The parts that work on received packets. They are apart from the ports, whose memory the packets
/// borrow.
struct Processor {
    number: usize,
    manager: FlowManager,
    recorder: Option<Box<dyn FlowRecorder>>,
    effect: Effect,
    flows_belong_to_ports: bool,
    egress: Option<Box<dyn Egress>>,
    sinks: Vec<Box<dyn Sink>>,
    clock: Clock,
    run: Arc<Run>,
    /// Flow time at the beginning of the round, µs; 0 in a replay.
    now_us: i64,
    packets: Vec<Packet>,
    fates: Vec<Fate>,
    /// What the kernel counted of flows, and the numbers of those that are not known here.
    counted: Vec<Counted>,
    unknown: Vec<u32>,
    /// Since the first rules were in force.
    rules: Option<Box<dyn FlowRules>>,
    by_server: Option<Arc<ServerActions>>,
}

/// What a round found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Round {
    /// All ports have ended.
    End,
    /// No packets.
    Idle,
    /// Packets.
    Busy,
}

impl FlowWorker {
    /// Puts a worker together.
    pub fn new(parts: Parts) -> FlowWorker {
        let Limits { burst, .. } = parts.limits;
        let now_us = parts.clock.now_us().unwrap_or_default();
        let (rules, mut hooks) = (parts.rules, parts.hooks);
        let (mut manager, run) = (parts.manager, parts.run.clone());
        if let Some(inline) = manager.parts_mut() {
            inline.set_clock(move || run.now_ns());
        }
        let mut worker = FlowWorker {
            counters: vec![PortCounters::default(); parts.ports.len()],
            ports: parts.ports,
            processor: Processor {
                number: parts.number,
                manager,
                recorder: hooks.recorder.take(),
                effect: parts.effect,
                flows_belong_to_ports: parts.flows_belong_to_ports,
                egress: parts.egress,
                sinks: parts.sinks,
                clock: parts.clock,
                run: parts.run,
                now_us,
                packets: Vec::with_capacity(burst),
                fates: Vec::with_capacity(burst),
                counted: Vec::with_capacity(COUNTED_MAX),
                unknown: Vec::with_capacity(COUNTED_MAX),
                rules: None,
                by_server: hooks.by_server.take(),
            },
            inline: inline::Served::new(std::mem::take(&mut hooks.inline)),
            hooks,
            limits: parts.limits,
            looked_us: now_us,
            alone_since: None,
        };
        worker.processor.take(&mut Update { settings: None, rules });
        worker
    }

    /// Works until told to stop, or until the ports have ended or failed; then ends all flows and
    /// settles what is left.
    pub fn run(mut self) -> FlowOutcome {
        let worked = self.work();
        if worked.is_err() {
            // The run has failed, so the other workers end, too.
            self.processor.run.stop();
        }
        self.finish(worked)
    }

    fn work(&mut self) -> Result<(), Error> {
        let mut idle = 0;
        while !self.processor.run.is_stopped() {
            self.make_room()?;
            let round = self.round()?;
            match round {
                Round::Busy => idle = 0,
                Round::Idle => {
                    idle += 1;
                    self.idle(idle)?;
                }
                Round::End => break,
            }
            self.look_at_links();
            self.settle()?;
            self.publish_services(round == Round::Idle);
            if let Some(settings) = &self.hooks.settings {
                settings.take(|update| self.processor.take(update));
            }
            if let Some(look) = &mut self.hooks.look {
                let Processor { manager, clock, rules, .. } = &self.processor;
                let is_idle = round == Round::Idle;
                look.go_on(manager, clock.ahead_us(), is_idle, rules.as_deref());
            }
        }
        self.process_last()
    }

    /// By packet time, waits until a burst can lose nothing.
    fn make_room(&mut self) -> Result<(), Error> {
        if self.processor.effect == Effect::Arrival {
            return Ok(());
        }
        let backoff = Backoff::new();
        while !self.processor.has_room(self.limits.burst) {
            self.processor.wait_for_labels(&backoff)?;
            self.settle()?;
        }
        Ok(())
    }

    /// A burst from each port.
    fn round(&mut self) -> Result<Round, Error> {
        let FlowWorker { ports, processor, .. } = self;
        processor.now_us = processor.clock.now_us().unwrap_or_default();
        let (mut round, mut packets) = (Round::End, 0);
        for (i, port) in ports.iter_mut().enumerate() {
            let found = match port.receive(self.limits.burst)? {
                Received::Burst(burst) => {
                    packets += burst.len() as u64;
                    processor.process(i, burst)?;
                    port.notify(Notice::Forget(&processor.unknown));
                    Round::Busy
                }
                Received::Nothing => Round::Idle,
                Received::End => Round::End,
            };
            round = round.max(found);
        }
        processor.run.count_round(processor.number, packets);
        Ok(round)
    }

    /// Runs after `rounds` rounds without packets. A replay does nothing here: its ports wait by
    /// themselves, and its time stands still meanwhile.
    fn idle(&mut self, rounds: u32) -> Result<(), Error> {
        let Clock::Live(_) = self.processor.clock else {
            return Ok(());
        };
        let idle_us = self.processor.now_us - LAG_US;
        self.processor.step(FlowStep::Pass(idle_us));
        self.report_links();
        self.check_ports()?;
        if rounds > ROUNDS_BEFORE_SLEEP {
            self.sleep()?;
        }
        Ok(())
    }

    /// Sleeps until there are packets, a label that a sink wants at once, or a timeout may be due.
    fn sleep(&mut self) -> Result<(), Error> {
        let is_looking = self.hooks.look.as_ref().is_some_and(LookPort::is_looking);
        let most = if is_looking { Duration::ZERO } else { SLEEP_MAX };
        let Processor { manager, sinks, .. } = &self.processor;
        let is_urgent = sinks.iter().any(|sink| sink.is_urgent());
        if !is_urgent || manager.labels_awaited() == 0 {
            packetio::wait(self.ports.iter().map(AsRef::as_ref), None, most);
            return Ok(());
        }
        let run = self.processor.run.clone();
        let waker = run.label_waker(self.processor.number);
        let Prepared { event, must_look } = waker.prepare();
        let found = match must_look {
            true => self.processor.find_labels(),
            false => Ok(false),
        };
        if let Ok(false) = found {
            packetio::wait(self.ports.iter().map(AsRef::as_ref), event, most);
        }
        waker.done();
        found.map(drop)
    }

    /// Once a second: reports events of links, and a wall clock that was set while no packet came.
    fn look_at_links(&mut self) {
        if self.processor.now_us - self.looked_us < LOOK_EVERY_US {
            return;
        }
        self.looked_us = self.processor.now_us;
        self.report_links();
        self.processor.check_clock();
    }

    fn report_links(&mut self) {
        for event in self.ports.iter_mut().filter_map(|port| port.link_event()) {
            self.processor.run.report(event.into());
        }
    }

    /// Fails if no port is left and none has come back in time.
    fn check_ports(&mut self) -> Result<(), Error> {
        if !self.ports.iter().all(|port| port.is_lost()) {
            self.alone_since = None;
            return Ok(());
        }
        let since = *self.alone_since.get_or_insert_with(Instant::now);
        let is_hopeless = self.ports.iter().all(|port| port.is_failed());
        if is_hopeless || since.elapsed() >= self.limits.give_up_after {
            let names: Vec<&str> = self.ports.iter().map(|port| port.name()).collect();
            return Err(Error::unavailable(format!(
                "{}: no interface is left, and none has come back; start again when there is one",
                names.join(", ")
            )));
        }
        Ok(())
    }

    /// Hands over what is ready, and the counters if somebody asks for them.
    fn settle(&mut self) -> Result<(), Error> {
        let settled = self.processor.settle(usize::MAX);
        self.publish();
        settled.map(drop)
    }

    fn publish_services(&mut self, is_idle: bool) {
        let Processor { manager, clock, now_us, .. } = &mut self.processor;
        manager.publish_services(*now_us, clock.ahead_us(), is_idle);
        if let Some(services) = &self.hooks.services {
            services.take(|change| manager.change_services(change));
        }
    }

    fn publish(&mut self) {
        let FlowWorker { ports, processor, hooks, counters, inline, .. } = self;
        if let Some(answering) = processor.manager.parts_mut() {
            inline.serve(answering, processor.run.now_ns());
        }
        if let Some(telemetry) = &hooks.telemetry {
            telemetry.publish(|snapshot| {
                count_ports(ports, processor, counters);
                processor.describe(snapshot, counters);
            });
        }
        if let Some(servers) = &hooks.servers {
            servers.publish(|portion| portion.fill(&processor.manager));
        }
    }
}

/// Asks the kernel and the ports for their counts. Only for a snapshot, so that all figures are of
/// one moment.
fn count_ports(ports: &mut [Box<dyn Rx>], processor: &Processor, counters: &mut [PortCounters]) {
    for (port, counters) in ports.iter_mut().zip(&mut *counters) {
        counters.rx = port.counts();
    }
    if let Some(egress) = &processor.egress {
        egress.count(counters);
    }
}

/// The kernel's answer as a label.
fn given(answer: &FrameAnswer) -> Given {
    let label = Label::Class {
        class: answer.class,
        confidence: in_words(f32::from(answer.confidence) / 32_768.0),
        source: Source::Model,
        model: answer.generation,
    };
    Given { at: answer.at, elements: answer.elements, label }
}

/// The port's number in the flow manager, where 0 means none.
fn number_of(port: usize) -> u8 {
    u8::try_from(port + 1).unwrap_or(u8::MAX)
}

impl Processor {
    /// Takes other settings or rules; the old ones are left in their place.
    fn take(&mut self, update: &mut Update) {
        if let Some(settings) = &mut update.settings {
            self.step(FlowStep::Configure(settings));
        }
        let mut change = match (&mut self.rules, update.rules.take()) {
            (_, None) => return,
            (Some(rules), Some(mut new)) => {
                let change = new.replace(rules);
                update.rules = Some(new);
                change
            }
            (none, Some(new)) => {
                let (rules, change) = new.begin();
                *none = Some(rules);
                Some(change)
            }
        };
        if let Some(rules) = &self.rules {
            let sinks = self.sinks.iter_mut();
            sinks.for_each(|sink| sink.take_rules(rules.in_force()));
        }
        if let Some(change) = &mut change {
            self.step(FlowStep::ChangeRules(change));
        }
    }

    /// A step that needs nothing else of the processor.
    fn step(&mut self, step: FlowStep<'_>) {
        step.take(&mut self.manager, &mut self.recorder);
    }

    /// One burst, from the port of this number.
    fn process(&mut self, port: usize, mut burst: Burst<'_>) -> Result<(), Error> {
        let is_live = matches!(self.clock, Clock::Live(_));
        let owns_flows = self.flows_belong_to_ports;
        // A capture does not say where its packets came in.
        if owns_flows || is_live {
            let port = number_of(port);
            self.step(FlowStep::Port { port, owns_flows });
        }
        let counts = burst.counts();
        if burst.is_empty() {
            self.count(counts);
            self.look_up_rules_between();
            return Ok(());
        }
        self.manager.give(burst.answers().iter().map(given));
        let (data, frames) = burst.parts();
        let now_us = self.now_us;
        if !self.clock.fits(frames, now_us) {
            self.check_clock();
        }
        // In captures the length in the IP header counts, whatever the record says of the wire.
        self.packets.clear();
        self.packets.extend(frames.iter().map(|frame| Packet {
            at: frame.at,
            captured: frame.captured,
            wire: if is_live { frame.wire } else { u32::MAX },
            link: frame.link,
            time_us: self.clock.flow_time_of(frame.time_us, now_us),
            rss: frame.rss.and_then(NonZeroU32::new),
            gso: Gso::from_bits(frame.gso.bits()),
        }));
        let now_ns = self.run.now_ns();
        let emitted = self.manager.counters().series_emitted();
        let step = FlowStep::Burst(data, &self.packets, now_ns, &mut self.fates);
        step.take(&mut self.manager, &mut self.recorder);
        // Their flows may begin with the burst.
        self.count(counts);
        self.look_up_rules(data, now_ns);
        if let Some(egress) = &mut self.egress {
            let sent = egress.send(port, &burst, &self.packets, &self.fates, &self.manager);
            self.give_up_egress_on(&sent);
            sent?;
        }
        // After the burst was sent: this may be a system call, and the thread that it wakes may get
        // this CPU.
        if self.manager.counters().series_emitted() != emitted {
            self.run.waker.wake();
        }
        Ok(())
    }

    /// Looks up the rules that the flow manager asks for, before the packets of the burst leave.
    #[inline]
    fn look_up_rules(&mut self, data: &mut [u8], now_ns: u64) {
        let Some(rules) = &mut self.rules else {
            return;
        };
        // By packet time the burst goes on behind each answer.
        while !self.manager.rule_questions().is_empty() {
            let sinks = &mut self.sinks;
            let (questions, by_server) = (self.manager.rule_questions(), self.by_server.as_deref());
            let answers = rules.answer(questions, by_server, &mut |ruled| {
                sinks.iter_mut().for_each(|sink| sink.ruled(ruled));
            });
            let (packets, fates) = (&self.packets, &mut self.fates);
            let step = FlowStep::AnswerRules(answers, data, packets, now_ns, fates);
            step.take(&mut self.manager, &mut self.recorder);
        }
    }

    /// The same where no packets wait.
    fn look_up_rules_between(&mut self) {
        if self.rules.is_some() {
            self.packets.clear();
            self.fates.clear();
            self.look_up_rules(&mut [], self.run.now_ns());
        }
    }

    /// Adds what the kernel counted of flows.
    fn count(&mut self, counts: &[FlowCounts]) {
        self.unknown.clear();
        if counts.is_empty() {
            return;
        }
        self.counted.clear();
        self.counted.extend(counts.iter().map(|flow| Counted {
            key: Key::from_ends(flow.protocol, flow.ends[0], flow.ends[1]),
            packets: flow.packets,
            bytes: flow.bytes,
            generation: flow.generation,
            last_us: self.clock.flow_time_of(flow.last_us, self.now_us),
        }));
        let step = FlowStep::Count(&self.counted, &mut self.unknown);
        step.take(&mut self.manager, &mut self.recorder);
    }

    /// Drops an egress that failed; records are still settled.
    fn give_up_egress_on(&mut self, result: &Result<(), Error>) {
        if result.is_err() {
            self.egress = None;
        }
    }

    /// Hands labels and ended flows that are ready to the sinks, at most `most` of the flows;
    /// returns how many.
    fn settle(&mut self, most: usize) -> Result<usize, Error> {
        let advanced = self.egress.as_mut().map_or(Ok(()), |it| it.advance());
        self.give_up_egress_on(&advanced);
        let done = self.egress.as_ref().map_or(u64::MAX, |it| it.done());
        let now_ns = self.run.now_ns();
        // Records have wall time.
        let ahead_us = self.clock.ahead_us();
        let (sinks, rules) = (&mut self.sinks, &mut self.rules);
        let has_consumer = !sinks.is_empty() || rules.is_some();
        let mut out = |record: &mut Record| {
            if let Some(rules) = rules
                && let Record::Flow(flow) = &*record
            {
                rules.count(flow);
            }
            record.shift(ahead_us);
            sinks.iter_mut().for_each(|sink| sink.record(record));
        };
        let is_idle = || self.manager.labels_awaited() == 0 && self.manager.is_settled();
        let mut settled = 0;
        match done {
            _ if !has_consumer => self.manager.discard_records(done, now_ns),
            // The call would change nothing: not worth an event of a recording.
            u64::MAX if is_idle() => {}
            u64::MAX => {
                let step = FlowStep::Settle(most, now_ns, &mut out);
                settled = step.take(&mut self.manager, &mut self.recorder);
            }
            // Only a replay's egress keeps packets, and a replay is not recorded.
            _ => self.manager.settle(done, now_ns, &mut out),
        }
        // Labels that came are questions.
        self.look_up_rules_between();
        advanced.map(|()| settled)
    }

    /// Looks at every label that is awaited, and hands on those that came; whether there were some.
    fn find_labels(&mut self) -> Result<bool, Error> {
        let awaited = self.manager.labels_awaited();
        for _ in 0..awaited.div_ceil(LABELS_LOOKED_AT) {
            self.settle(usize::MAX)?;
        }
        Ok(self.manager.labels_awaited() < awaited)
    }

    fn has_room(&mut self, packets: usize) -> bool {
        let is_full = self.egress.as_ref().is_some_and(|it| it.is_full());
        !is_full && self.manager.has_room(packets)
    }

    /// A moment for the analytics side, unless its labels will never come.
    fn wait_for_labels(&self, backoff: &Backoff) -> Result<(), Error> {
        if self.is_analytics_dead() {
            return Err(Error::software("the analytics thread died; its series have no labels"));
        }
        if backoff.is_completed() {
            std::thread::sleep(PAUSE);
        } else {
            backoff.snooze();
        }
        Ok(())
    }

    /// Reports a wall clock that was set; one worker does so for all.
    fn check_clock(&mut self) {
        if let Some(by_us) = self.clock.check()
            && self.number == 0
        {
            self.run.report(Event::Warning(clock_set(by_us)));
        }
    }

    fn copied(&self) -> TxCounts {
        let egress = self.egress.as_ref();
        egress.map(|it| it.copied()).unwrap_or_default()
    }

    /// The state of the worker between two bursts.
    fn describe(&self, snapshot: &mut FlowSnapshot, ports: &[PortCounters]) {
        let manager = &self.manager;
        snapshot.counters.copy_from(manager.counters());
        let counted = ports.iter().map(|port| port.rx.counted).sum();
        snapshot.counters.verdicts.set_counted(counted);
        snapshot.ports.clear();
        snapshot.ports.extend_from_slice(ports);
        snapshot.copied = self.copied();
        snapshot.forwards = self.egress.as_ref().is_some_and(|it| it.forwards());
        snapshot.alive = manager.flows_alive() as u64;
        snapshot.half_open = manager.flows_half_open() as u64;
        snapshot.unrecorded = manager.flows_unrecorded() as u64;
        snapshot.clock_steps = manager.counters().clock_rebased + self.clock.steps();
        if let Some(rules) = &self.rules {
            snapshot.rules.copy_from(rules.counts());
        }
    }
}
