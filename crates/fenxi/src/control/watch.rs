//! Logs changes of the data path, whose threads only count: compares each snapshot with the one
//! before.

use std::time::Instant;

use tracing::{debug, error, info, warn};

use super::collector::{Collector, Life, STALLED_AFTER, Watched};
use super::view::series_lost;
use crate::log::Loss;

pub struct Watch {
    /// The threads, flow managers first.
    threads: Vec<Answers>,
    /// The devices, analytics manager by analytics manager.
    devices: Vec<Device>,
    kernel_dropped: Loss,
    abandoned: Loss,
    table_full: Loss,
    evicted: Loss,
    /// By reason, in the order of [`series_lost`].
    series: [Loss; 5],
    /// Losses of the sinks, in the order of their reports.
    sinks: Vec<Loss>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    InTime,
    Late,
    NoMore,
}

#[derive(Clone, Copy)]
struct Device {
    is_up: bool,
    went_down: u64,
    probes: u64,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            threads: Vec::new(),
            devices: Vec::new(),
            kernel_dropped: Loss::new(
                "packets are lost because a receive ring is full; see io.blocks or, with af_xdp, \
                xdp.frames",
            ),
            abandoned: Loss::new("packets are lost in the ring of an interface that went away"),
            table_full: Loss::new("flows find no room in the table; see flow.max_flows"),
            evicted: Loss::new(
                "the flow table is full and flows are evicted, as in a flood; see fenxi ctl status",
            ),
            series: [
                "series are lost, and their flows get no label: the ring to analytics is full; see \
                ring.slots",
                "series of half-open flows are left out because the ring to analytics fills, as in \
                a flood",
                "series are lost, and their flows get no label: no device works",
                "series are lost, and their flows get no label: a device failed, and there is no \
                other",
                "series are lost, and their flows get no label: two devices failed on them",
            ]
            .map(Loss::new),
            sinks: Vec::new(),
        }
    }
}

impl Watch {
    /// Logs changes since the last poll.
    pub fn poll(&mut self, collector: &Collector) {
        let flows = collector.flows.iter().map(answers);
        let threads = flows.chain(collector.analytics_threads().map(answers));
        let threads: Vec<(String, Answers)> = threads.collect();
        self.threads.resize(threads.len(), Answers::InTime);
        for ((name, now), before) in threads.into_iter().zip(&mut self.threads) {
            say_thread(&name, *before, now);
            *before = now;
        }
        self.poll_devices(collector);
        self.poll_losses(collector);
    }

    fn poll_devices(&mut self, collector: &Collector) {
        let mut place = 0;
        for watched in &collector.analytics {
            for (state, device) in watched.latest.devices() {
                if place == self.devices.len() {
                    self.devices.push(Device { is_up: true, went_down: 0, probes: 0 });
                }
                let now = Device {
                    is_up: state.is_up(),
                    went_down: device.went_down,
                    probes: device.probes,
                };
                let before = std::mem::replace(&mut self.devices[place], now);
                let name = format!("{} of {}", device.requested, watched.thread);
                let why = device.last_error.as_deref().unwrap_or("no error was reported");
                say_device(&name, why, before, now);
                place += 1;
            }
        }
    }

    fn poll_losses(&mut self, collector: &Collector) {
        use flowmgr::verdict::Verdict;
        let now = Instant::now();
        let flows = || collector.flows.iter().map(|watched| &watched.latest);
        let ports = || flows().flat_map(|flows| &flows.ports);
        let abandoned = ports().map(|port| port.rx.abandoned).sum();
        self.abandoned.poll(now, abandoned, String::new);
        let dropped: u64 = ports().map(|port| port.rx.dropped).sum();
        self.kernel_dropped.poll(now, dropped - abandoned, String::new);
        let full = flows().map(|flows| flows.counters.verdicts.get(Verdict::TableFull));
        self.table_full.poll(now, full.sum(), String::new);
        let evictions = flows().flat_map(|flows| flows.counters.evictions.by_kind());
        let evicted = evictions.map(|(_, flows)| flows).sum();
        self.evicted.poll(now, evicted, String::new);
        let mut analytics = analytics::Counters::none();
        let managers = collector.analytics.iter();
        managers.for_each(|watched| analytics.merge(&watched.latest.counters()));
        let shed = flows().map(|flows| flows.counters.series_shed()).sum();
        let half_open = flows().map(|flows| flows.counters.series_shed_half_open());
        let lost = series_lost([shed, half_open.sum()], &analytics);
        for (loss, (_, series)) in self.series.iter_mut().zip(lost) {
            loss.poll(now, series, String::new);
        }
        let lost = collector.sinks.iter().flat_map(|report| &report.losses);
        for (i, lost) in lost.enumerate() {
            if i == self.sinks.len() {
                self.sinks.push(Loss::new(lost.what));
            }
            self.sinks[i].poll(now, lost.count, || lost.why.clone());
        }
    }
}

fn answers<T>(watched: &Watched<T>) -> (String, Answers) {
    let answers = match watched.life {
        Life::Died => Answers::NoMore,
        Life::Running if watched.owes() > STALLED_AFTER => Answers::Late,
        Life::Running | Life::Ended => Answers::InTime,
    };
    (watched.thread.to_string(), answers)
}

fn say_thread(name: &str, before: Answers, now: Answers) {
    match now {
        _ if now == before => {}
        Answers::NoMore => error!("{name}: the thread has died"),
        Answers::Late => {
            warn!("{name}: the thread has not answered for {} s", STALLED_AFTER.as_secs())
        }
        Answers::InTime => info!("{name}: the thread answers again"),
    }
}

fn say_device(name: &str, why: &str, before: Device, now: Device) {
    match (before.is_up, now.is_up) {
        (true, false) => warn!("{name}: the device is down: {why}"),
        (false, true) => info!("{name}: the device is up again"),
        (true, true) if now.went_down > before.went_down => {
            warn!("{name}: the device was down briefly: {why}");
        }
        (false, false) if now.probes > before.probes => debug!("{name}: still down: {why}"),
        _ => {}
    }
}
