//! How a thread of the data path stands at one moment: what it has counted so far.

use analytics::DeviceState;

/// What a flow manager received from a port, and sent out of it. Since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortSums {
    /// Packets taken from it.
    pub received: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Of the packets, those that are several merged into one, or longer than the interface's MTU.
    pub merged: u64,
    /// Packets that the kernel had for the flow manager's receive ring, whatever became of them.
    pub offered: u64,
    /// Of these, packets that found the ring full, or were in it when it was given up with its interface.
    pub dropped: u64,
    /// Of the dropped ones, those that were in the ring.
    pub abandoned: u64,
    /// Of the offered ones, packets that are in the ring.
    pub waiting: u64,
    /// Packets that should have come out of the ring and did not (above 0), or that nobody put in (below 0).
    pub missing: i64,
    /// Packets sent out of it.
    pub sent: u64,
    /// Packets to be sent out of it that it did not take: full, or down.
    pub refused: u64,
    /// Above its MTU.
    pub too_long: u64,
    /// Of which only a part was captured.
    pub cut: u64,
    /// The interface is down or gone.
    pub is_away: bool,
}

impl PortSums {
    /// Packets to be sent out of it that were not.
    pub fn unsent(&self) -> u64 {
        self.refused + self.too_long + self.cut
    }

    /// Adds those of another flow manager, or port.
    pub fn merge(&mut self, other: &PortSums) {
        let PortSums {
            received,
            bytes,
            merged,
            offered,
            dropped,
            abandoned,
            waiting,
            missing,
            sent,
            refused,
            too_long,
            cut,
            is_away,
        } = other;
        self.received += received;
        self.bytes += bytes;
        self.merged += merged;
        self.offered += offered;
        self.dropped += dropped;
        self.abandoned += abandoned;
        self.waiting += waiting;
        self.missing += missing;
        self.sent += sent;
        self.refused += refused;
        self.too_long += too_long;
        self.cut += cut;
        self.is_away |= is_away;
    }

    /// Of several.
    pub fn sum<'a>(ports: impl IntoIterator<Item = &'a PortSums>) -> PortSums {
        let mut sum = PortSums::default();
        ports.into_iter().for_each(|port| sum.merge(port));
        sum
    }
}

/// A flow manager's thread between two bursts.
#[derive(Debug, Default)]
pub struct FlowSnapshot {
    /// What the manager counted.
    pub counters: flowmgr::Counters,
    /// Its ports, in the order of [`super::Facts::ports`].
    pub ports: Vec<PortSums>,
    /// Whether what it receives has to leave again.
    pub forwards: bool,
    /// Flows in the table.
    pub alive: u64,
    /// Of these, flows that nobody has answered yet.
    pub half_open: u64,
    /// Flows that left it and wait for their record.
    pub unrecorded: u64,
    /// Records that found no room in their queue.
    pub records_dropped: u64,
    /// Steps of the clock that stamps packets: back in a capture, either way live.
    pub clock_steps: u64,
}

impl FlowSnapshot {
    /// Of a manager with so many ports that has counted this; all else is 0.
    pub fn of(counters: &flowmgr::Counters, ports: usize) -> FlowSnapshot {
        FlowSnapshot {
            counters: counters.clone(),
            ports: vec![PortSums::default(); ports],
            ..FlowSnapshot::default()
        }
    }

    /// All ports together.
    pub fn port_sums(&self) -> PortSums {
        PortSums::sum(&self.ports)
    }

    /// Adds what another thread of the pipeline has.
    pub fn merge(&mut self, other: &FlowSnapshot) {
        let FlowSnapshot {
            counters,
            ports,
            forwards,
            alive,
            half_open,
            unrecorded,
            records_dropped,
            clock_steps,
        } = other;
        self.counters.merge(counters);
        self.ports.resize(ports.len(), PortSums::default());
        for (sum, port) in self.ports.iter_mut().zip(ports) {
            sum.merge(port);
        }
        self.forwards |= forwards;
        self.alive += alive;
        self.half_open += half_open;
        self.unrecorded += unrecorded;
        self.records_dropped += records_dropped;
        self.clock_steps += clock_steps;
    }
}

/// An analytics thread between two rounds.
#[derive(Debug, Clone)]
pub struct AnalyticsSnapshot {
    /// What the manager counted.
    pub counters: analytics::Counters,
    /// Series on their way through a device.
    pub on_devices: u64,
    /// How its devices are.
    pub devices: Vec<DeviceState>,
}

impl AnalyticsSnapshot {
    /// How a manager stands now.
    pub fn of(manager: &analytics::Manager) -> AnalyticsSnapshot {
        AnalyticsSnapshot {
            counters: manager.counters().clone(),
            on_devices: manager.on_devices(),
            devices: manager.health().map(|health| health.state).collect(),
        }
    }

    /// The same again, into the memory that is there.
    pub fn update(&mut self, manager: &analytics::Manager) {
        self.counters.copy_from(manager.counters());
        self.on_devices = manager.on_devices();
        self.devices.clear();
        self.devices
            .extend(manager.health().map(|health| health.state));
    }
}
