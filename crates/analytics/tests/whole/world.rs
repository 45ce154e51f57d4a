//! A flow manager, a ring, an analytics manager and devices, without threads: the test moves clocks
//! and devices.

use std::sync::Arc;
use std::time::Duration;

use accel::Sizes;
use analytics::{
    Accelerator, Coming, Config, Manager, NewModel, RingInput, Settings, Standby, Task,
};
use cring::{Feature, Labels};
use flowmgr::hash::HashKind;
use flowmgr::record::Record;
use flowmgr::wire::{TCP, UDP};
use flowmgr::{Actions, DepthConfig, Effect, Fate, PortLabel, TaskConfig};

use crate::Outcome;
use crate::coverage::Coverage;
use crate::device::{BY_PORT, CLASSES, CONTRADICTS, PRECISION, SharedBay, Told, look};
use crate::ensure;
use crate::events::{Event, FLOWS, K, Kind, Plan, TALKERS, cache, policy};
use crate::frames::{SERVER_PORT, protocol};
use crate::model::{Model, Moment, dscp_of};

/// How long a round takes.
const ROUND_US: u64 = 100;
const DEADLINE: Duration = Duration::from_millis(5);
/// As in a live run: the clock of an idle flow manager is behind the wall clock.
pub const LAG_US: i64 = 100_000;

pub struct World {
    pub plan: Plan,
    pub effect: Effect,
    pub flows: flowmgr::Manager,
    pub series: Manager,
    labels: Arc<dyn Labels>,
    /// The bays of all devices so far.
    pub bays: Vec<SharedBay>,
    /// The caller's clock, which never goes back, and the one that stamps packets.
    pub now_ns: u64,
    pub wall_us: i64,
    /// When each model came into use.
    generations: Vec<u64>,
    /// The analytics side's configuration, and how DSCP follows from the class.
    config: Config,
    pub way: u8,
    is_swapping: bool,
    /// Packets so far, and entries in use at most.
    pub packets: u64,
    pub entries: usize,
    pub model: Model,
    pub coverage: Coverage,
    pub fates: Vec<Fate>,
}

/// A handshake, and data in turn.
fn talk(packets: u8) -> impl Iterator<Item = Kind> {
    let turns = [Kind::Data, Kind::Answer].into_iter().cycle();
    let kinds = [Kind::Syn, Kind::SynAck].into_iter().chain(turns);
    kinds.take(packets.into())
}

fn settings(number: u8, plan: &Plan) -> flowmgr::Settings {
    let way = number % 2;
    flowmgr::Settings {
        idle_timeout_s: [3, 2][usize::from(way)],
        closed_timeout_s: 1,
        half_open_timeout_s: u16::from(plan.has_more_timeouts),
        established_timeout_s: if plan.has_more_timeouts { 9 } else { 0 },
        active_timeout_s: u32::from(plan.reports),
        end_on_fin_rst: true,
        actions: Actions::of_dscp(
            &(0..CLASSES as u16).map(|class| Some(dscp_of(class, way))).collect::<Vec<_>>(),
        ),
    }
}

fn flow_config(plan: &Plan, effect: Effect) -> flowmgr::Config {
    flowmgr::Config {
        tasks: vec![task(plan)],
        settings: settings(0, plan),
        hash: match plan.collides {
            true => HashKind::Fenxi,
            false => HashKind::Keyed { seed: 7 },
        },
        max_flows: plan.max_flows,
        buckets: 8,
        effect,
        record_series: flowmgr::SeriesShare::ALL,
        flow_id_first: 0,
        flow_id_step: 1,
        inside: flowmgr::Inside::default(),
        expects_counts: false,
        // A few packets are bulk.
        servers: None,
        samples: flowmgr::SeriesShare::NONE,
        measured: Default::default(),
        behaviour: Some(flowmgr::Bounds {
            bulk_bytes: 500,
            small_bytes: 300,
            interactive_packets_max: 30,
            realtime_packets_min: 10,
            hold_s: 2,
            idle_s: 5,
        }),
    }
}

fn task(plan: &Plan) -> TaskConfig {
    let depth = |k| DepthConfig { k, sure: 0, contradicts: Some(CONTRADICTS) };
    let (ks, ports) = match plan.ports_first {
        true => (&[0, K][..], [TCP, UDP].map(by_port).into()),
        false => (&[K][..], Vec::new()),
    };
    TaskConfig {
        midstream: plan.asks_midstream,
        depths: ks.iter().copied().map(depth).collect(),
        ports,
        ..TaskConfig::lengths(K, CLASSES)
    }
}

fn by_port(protocol: u8) -> PortLabel {
    PortLabel { protocol, port: SERVER_PORT, class: BY_PORT, precision: PRECISION }
}

/// Devices with one model; the first takes two sizes, the second any.
fn accelerators(plan: &Plan, generation: u16) -> (Vec<Accelerator>, Vec<SharedBay>) {
    let sizes = [Sizes::Fixed(vec![2, 4]), Sizes::Any { cap: 3 }];
    let devices = sizes.into_iter().take(plan.devices).map(|sizes| {
        let bay = SharedBay::default();
        let device = Told::new(bay.clone(), generation, sizes);
        let accelerator = Accelerator {
            device: Box::new(device),
            profile: None,
            deadline: plan.has_deadline.then_some(DEADLINE),
            executor: 0,
        };
        (accelerator, bay)
    });
    devices.unzip()
}

impl World {
    pub fn new(plan: Plan, effect: Effect) -> World {
        let (producer, consumer) = cring::ring(plan.ring_slots);
        let flows = flowmgr::Manager::new(flow_config(&plan, effect), producer).unwrap();
        let labels = flows.labels();
        let ring_input = RingInput { series: consumer, labels: labels.clone() };
        let config = Config {
            context: Vec::new(),
            k: K,
            features: vec![Feature::SignedLength],
            policy: plan.policy,
            cache: plan.cache,
            probe: vec![1.0; K],
            word: 0,
            priority: 0,
            after: analytics::After::default(),
        };
        let (accelerators, bays) = accelerators(&plan, 0);
        let mut series = Task::new(config.clone(), vec![ring_input], accelerators).unwrap();
        // The test must not depend on time, so the cache's costs do not count.
        series.set_cost_clock(|| 0);
        World {
            plan,
            effect,
            flows,
            series: Manager::new(vec![series]),
            labels,
            bays,
            now_ns: 1_000_000_000,
            wall_us: 1_700_000_000_000_000,
            generations: vec![0],
            config,
            way: 0,
            is_swapping: false,
            packets: 0,
            entries: 0,
            model: Model::default(),
            coverage: Coverage::default(),
            fates: Vec::new(),
        }
    }

    pub fn is_live(&self) -> bool {
        self.effect == Effect::Arrival
    }

    /// Applies an event; then everything balances.
    pub fn step(&mut self, event: &Event) -> Outcome {
        match *event {
            Event::Talk { flow, packets } => self.send(flow, talk(packets))?,
            Event::Call { flow, packets } => {
                let close = [Kind::Fin, Kind::FinOfServer];
                self.send(flow, talk(packets).chain(close))?;
            }
            Event::OneWay { flow, packets } => {
                let data = std::iter::repeat(Kind::Data);
                let kinds = std::iter::once(Kind::Syn).chain(data);
                self.send(flow, kinds.take(packets.into()))?;
            }
            Event::Midstream { flow, packets } => {
                let kinds = [Kind::Data, Kind::Answer].into_iter().cycle();
                self.send(flow, kinds.take(packets.into()))?;
            }
            Event::Send { flow, ref kinds } => self.send(flow, kinds.iter().copied())?,
            Event::Scan { from, flows } => {
                let clients = from..from.saturating_add(flows).min(FLOWS);
                let packets = clients.map(|flow| (flow, Kind::Syn)).collect::<Vec<_>>();
                self.burst(packets)?;
            }
            Event::Crowd { from, flows } => {
                for flow in from..from.saturating_add(flows).min(TALKERS) {
                    // As few packets as establish a flow.
                    let packets = if protocol(flow) == TCP { 3 } else { 2 };
                    self.step(&Event::Midstream { flow, packets })?;
                }
            }
            Event::Noise => self.noise(),
            Event::Pause { ms } => self.pause(u64::from(ms) * 1000),
            Event::Jump { seconds } => {
                self.wall_us += seconds * 1_000_000;
                self.coverage.saw(match seconds {
                    ..0 => "clock set back",
                    _ => "clock set forward",
                });
            }
            Event::Idle if self.is_live() => self.flows.pass(self.wall_us - LAG_US),
            Event::Idle => {}
            Event::Rounds(rounds) => (0..rounds).for_each(|_| self.round(ROUND_US)),
            Event::Answer { device, reply } => {
                let devices = self.plan.devices;
                let bays = self.bays.iter().skip(usize::from(device) % devices);
                for bay in bays.step_by(devices) {
                    look(bay, |bay| bay.reply = bay.is_busy.then_some(reply));
                }
            }
            Event::Refuse { device } => self.tell(device, |bay| bay.refuses = true),
            Event::Will { device, is_willing } => {
                self.tell(device, |bay| bay.is_willing = is_willing);
            }
            Event::Swap => self.swap(),
            Event::StandDown => self.abort(),
            Event::Reload(number) => self.reload(number),
            Event::Settle => self.settle()?,
        }
        self.check_balances()
    }

    /// The newest of the devices with this number.
    fn tell(&self, device: u8, tell: impl FnOnce(&mut crate::device::Bay)) {
        let devices = self.plan.devices;
        let newest = self.bays.len() - devices;
        look(&self.bays[newest + usize::from(device) % devices], tell);
    }

    pub fn pause(&mut self, us: u64) {
        self.now_ns += us * 1000;
        self.wall_us += us as i64;
    }

    fn task(&mut self) -> &mut Task {
        &mut self.series.tasks_mut()[0]
    }

    /// A round of the analytics thread.
    pub fn round(&mut self, takes_us: u64) {
        self.pause(takes_us);
        self.series.round(self.now_ns);
        if self.task().take_retired().is_some() {
            self.is_swapping = false;
        }
        let waits = self.is_swapping;
        self.coverage.saw_if(waits, "swap waits for a batch");
    }

    pub fn settle(&mut self) -> Outcome {
        let mut outcome = Ok(());
        let moment = Moment {
            now_ns: self.now_ns,
            generations: &self.generations,
            is_live: self.effect == Effect::Arrival,
            asks_midstream: self.plan.asks_midstream,
            ports_first: self.plan.ports_first,
        };
        let (model, coverage) = (&mut self.model, &mut self.coverage);
        let mut out = |record: &mut Record| {
            if outcome.is_ok() {
                outcome = model.said(record, moment, coverage);
            }
        };
        self.flows.settle(u64::MAX, self.now_ns, &mut out);
        outcome
    }

    fn standby(&mut self) -> (Standby, Vec<SharedBay>) {
        let generation = self.generations.len() as u16;
        let (accelerators, bays) = accelerators(&self.plan, generation);
        let standby = Standby {
            model: Some(NewModel { accelerators, generation, coming: Coming::Replaces }),
            settings: None,
        };
        (standby, bays)
    }

    fn swap(&mut self) {
        let (standby, bays) = self.standby();
        if self.task().prepare(standby).is_err() {
            self.coverage.saw("swap refused");
            return;
        }
        self.task().commit();
        self.generations.push(self.now_ns);
        self.bays.extend(bays);
        self.is_swapping = true;
    }

    fn abort(&mut self) {
        let (standby, _) = self.standby();
        if self.task().prepare(standby).is_ok() {
            assert!(self.task().abort().is_some());
            self.coverage.saw("stood down");
        }
    }

    fn reload(&mut self, number: u8) {
        let mut others = settings(number, &self.plan);
        self.flows.configure(&mut others);
        self.way = number % 2;
        let new =
            Config { policy: policy(number), cache: cache(number / 3), ..self.config.clone() };
        let standby =
            Standby { model: None, settings: Some(Settings::change(&self.config, &new).unwrap()) };
        if self.task().prepare(standby).is_err() {
            self.coverage.saw("reload refused");
            return;
        }
        self.task().commit();
        assert!(self.task().take_retired().is_some());
        self.config = new;
        self.coverage.saw("reload");
    }

    /// The sums add up, and nobody waits for a label that nobody works on.
    pub fn check_balances(&self) -> Outcome {
        let (flows, series) = (self.flows.counters(), self.series.tasks()[0].counters());
        let verdicts = flows.verdicts.total();
        ensure!(verdicts == self.packets, "{verdicts} verdicts for {} packets", self.packets);

        let finals: u64 = self.model.finals;
        let alive = self.flows.flows_alive() as u64;
        let unrecorded = self.flows.flows_unrecorded() as u64;
        let begun = flows.flows_begun.total();
        ensure!(
            begun == finals + alive + unrecorded,
            "{begun} flows begun, {finals} + {alive} + {unrecorded}"
        );
        ensure!(alive <= self.plan.max_flows as u64, "{alive} flows in the table");

        let given = flows.series_emitted() - flows.series_shed();
        let Some(in_ring) = given.checked_sub(series.series) else {
            return Err(format!("{} series seen of {given}", series.series));
        };
        ensure!(in_ring <= self.plan.ring_slots as u64, "{in_ring} in the ring");
        let had_fate = series.cached + series.inferred + series.shed() + series.failed();
        ensure!(had_fate <= series.series, "{had_fate} fates of {}", series.series);
        ensure!(self.is_live() || flows.series_shed() == 0, "a replay sheds nothing");
        let awaited = in_ring + series.series - had_fate;
        let asked = u8::from(self.plan.ports_first);
        let word = |entry| self.labels.word(asked, entry).read().1;
        let entries = 0..self.entries as u32;
        let pending = entries.filter(|&entry| word(entry) == cring::Label::Pending);
        let pending = pending.count() as u64;
        // In a replay flows wait for their labels; live they may be gone.
        let is_right = match self.is_live() {
            true => pending <= awaited,
            false => pending == awaited,
        };
        ensure!(is_right, "{pending} flows wait for {awaited} series");
        Ok(())
    }
}
