//! Metrics of flows by DSCP, as it came and as it was set, counted with their records.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dataplane::sink::Sink;
use flowmgr::record::Record;
use policy::Dscp;

use super::{Interfaces, Report, SinkControl, SinkKind, Start};
use crate::exit::Failure;
use crate::metric::{Family, Sample, count};

/// The sink of a run that has a control plane.
pub struct DscpSums;

impl SinkKind for DscpSums {
    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let control = start.recent.map(|recent| {
            let interfaces = recent.interfaces.clone();
            Box::new(Control { interfaces, sums: Arc::default() }) as Box<dyn SinkControl>
        });
        Ok(control)
    }

    fn empty_report(&self) -> Report {
        report(&Sums::default())
    }
}

struct Control {
    interfaces: Interfaces,
    sums: Arc<Sums>,
}

impl SinkControl for Control {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(Counting { interfaces: self.interfaces.clone(), sums: self.sums.clone() }))
    }

    fn report(&self) -> Report {
        report(&self.sums)
    }
}

/// Sums of all workers.
#[derive(Default)]
struct Sums {
    seen: ByDscp,
    set: ByDscp,
}

struct ByDscp([Volume; Dscp::MAX as usize + 1]);

impl Default for ByDscp {
    fn default() -> ByDscp {
        ByDscp(std::array::from_fn(|_| Volume::default()))
    }
}

#[derive(Default)]
struct Volume {
    /// Flows that have ended.
    flows: AtomicU64,
    bytes: AtomicU64,
}

impl ByDscp {
    fn add(&self, code_point: u8, flows: u64, bytes: u64) {
        if let Some(volume) = self.0.get(usize::from(code_point)) {
            volume.flows.fetch_add(flows, Ordering::Relaxed);
            volume.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Samples of the DSCPs that occurred.
    fn samples(&self, of: impl Fn(&Volume) -> &AtomicU64) -> Vec<Sample> {
        let volumes = (0..).zip(&self.0);
        let sample = |(code_point, volume): (u8, &Volume)| {
            let sum = of(volume).load(Ordering::Relaxed);
            let dscp = Dscp::new(code_point).filter(|_| sum > 0)?;
            Some(count(&[&dscp.to_string()], sum))
        };
        volumes.filter_map(sample).collect()
    }
}

struct Counting {
    interfaces: Interfaces,
    sums: Arc<Sums>,
}

impl Sink for Counting {
    fn record(&mut self, record: &Record) {
        let Record::Flow(flow) = record else { return };
        let dscps = self.interfaces.dscps(&flow.headers);
        let (flows, bytes) = (u64::from(flow.is_final()), flow.counts.bytes.iter().sum());
        self.sums.seen.add(dscps.seen, flows, bytes);
        if let Some(set) = dscps.set {
            self.sums.set.add(set, flows, bytes);
        }
    }
}

fn report(sums: &Sums) -> Report {
    let Sums { seen, set } = sums;
    let family = |name, unit, help, samples| Family::counter(name, unit, &["dscp"], help, samples);
    Report {
        metrics: vec![
            family(
                "fenxi_dscp_seen_flows_total",
                "flows",
                "Ended flows by the DSCP of their first packet.",
                seen.samples(|it| &it.flows),
            ),
            family(
                "fenxi_dscp_seen_bytes_total",
                "bytes",
                "Their bytes, counted with each record.",
                seen.samples(|it| &it.bytes),
            ),
            family(
                "fenxi_dscp_set_flows_total",
                "flows",
                "Ended flows by the DSCP that fenxi set.",
                set.samples(|it| &it.flows),
            ),
            family(
                "fenxi_dscp_set_bytes_total",
                "bytes",
                "Their bytes, also those before it was set.",
                set.samples(|it| &it.bytes),
            ),
        ],
        ..Report::default()
    }
}
