//! What `fenxi ctl services` and metrics say: the memories of all workers, read as any program
//! reads them, and added up.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use observe::{Egress, EgressKind, Error, Kind, Reader};

use super::memory::{Memory, Place};
use crate::metric::{Buckets, Family, Sample, Value, count, number, sample};
use crate::protocol::{EgressRow, Quantiles, ServiceRow};

/// Upper bounds of times, 2^n ns: 131 µs to 69 s.
const BOUNDS: std::ops::RangeInclusive<usize> = 17..=36;

/// An egress in all workers.
#[derive(Default)]
struct Seen {
    counts: EgressRow,
    /// Samples of [`TIMES`], ns.
    times: [Vec<u64>; TIMES.len()],
}

/// The reservoirs that are shown, by their names in shared memory.
const TIMES: [&str; 3] = ["completion", "server_handshake", "response"];

/// The figures of a service.
pub fn row(place: &Place) -> ServiceRow {
    let mut all: BTreeMap<Egress, Seen> = BTreeMap::new();
    for memory in &place.memories {
        // A worker that publishes faster than it can be read is left out this time.
        let _ = add(&memory.reader, &mut all);
    }
    let mut egresses: Vec<EgressRow> = all
        .into_iter()
        .map(|(egress, seen)| {
            let mut times = seen.times;
            times.iter_mut().for_each(|times| times.sort_unstable());
            let at = |time: usize, share: usize| {
                let times = &times[time];
                times.get(times.len() * share / 100).map(|ns| ns / 1000)
            };
            let quantiles = |time| Some(Quantiles { p50: at(time, 50)?, p99: at(time, 99)? });
            EgressRow {
                egress: name(&egress, place),
                completion_p50_us: at(0, 50),
                completion_p90_us: at(0, 90),
                handshake_us: quantiles(1),
                response_us: quantiles(2),
                ..seen.counts
            }
        })
        .collect();
    egresses.sort_by_key(|row| std::cmp::Reverse(row.packets_in + row.packets_out));
    let paths = place.memories.iter().filter_map(|memory| memory.path.as_ref());
    ServiceRow {
        name: place.named.name.clone(),
        files: paths.map(|path| path.path().display().to_string()).collect(),
        egresses,
    }
}

fn add(reader: &Reader, all: &mut BTreeMap<Egress, Seen>) -> Result<(), Error> {
    let mut snapshot = reader.snapshot();
    reader.read(&mut snapshot)?;
    for row in snapshot.egresses() {
        let seen = all.entry(row.egress()).or_default();
        for (name, sum) in seen.counts.values_mut() {
            let kinds = [Kind::Counter, Kind::Gauge];
            let field = kinds.into_iter().find_map(|kind| reader.field(name, kind));
            *sum += field.and_then(|field| row.value(field)).unwrap_or(0);
        }
        for (name, times) in TIMES.iter().zip(&mut seen.times) {
            let Some(field) = reader.field(name, Kind::Reservoir) else { continue };
            let samples = reader.samples(row.slot(), field).unwrap_or_default();
            times.extend(samples.iter().map(|sample| sample.value));
        }
    }
    Ok(())
}

fn name(egress: &Egress, place: &Place) -> String {
    match egress.kind {
        EgressKind::OTHERS => return EgressRow::OTHERS.to_owned(),
        EgressKind::NEXT_HOP => {
            let bytes = egress.address[..6].iter().map(|byte| format!("{byte:02x}"));
            return bytes.collect::<Vec<_>>().join(":");
        }
        EgressKind::OUT_PORT => {
            let known = place.interfaces.iter().find(|(index, _)| *index == egress.port);
            return known.map_or_else(|| egress.port.to_string(), |(_, name)| name.clone());
        }
        _ => {}
    }
    let address = IpAddr::V6(Ipv6Addr::from(egress.address)).to_canonical();
    match (egress.port, address) {
        (0, address) => address.to_string(),
        (port, IpAddr::V4(address)) => format!("{address}:{port}"),
        (port, IpAddr::V6(address)) => format!("[{address}]:{port}"),
    }
}

/// A counter of an egress.
type Count = fn(&EgressRow) -> u64;

/// The metrics of these services, with their rows.
pub fn metrics<'a>(places: impl Iterator<Item = (&'a mut Place, ServiceRow)>) -> Vec<Family> {
    let [mut flows, mut in_flight, mut packets, mut bytes] = [const { Vec::<Sample>::new() }; 4];
    let mut completions = Vec::new();
    for (place, row) in places {
        let service = row.name.as_str();
        let sum = |of: Count| row.egresses.iter().map(of).sum::<u64>();
        let events: [(&str, Count); 5] = [
            ("begun", |it| it.flows_begun),
            ("answered", |it| it.flows_answered),
            ("ended", |it| it.flows_ended),
            ("reset", |it| it.flows_reset),
            ("unanswered", |it| it.syns_unanswered),
        ];
        flows.extend(events.map(|(event, of)| count(&[service, event], sum(of))));
        in_flight.push(number(&[service], sum(|it| it.flows_in_flight) as f64));
        packets.push(count(&[service, "in"], sum(|it| it.packets_in)));
        packets.push(count(&[service, "out"], sum(|it| it.packets_out)));
        bytes.push(count(&[service, "in"], sum(|it| it.bytes_in)));
        bytes.push(count(&[service, "out"], sum(|it| it.bytes_out)));
        let mut completion = completion(&place.memories);
        if let Some(shown) = &place.shown {
            keep(&mut completion, shown);
        }
        place.shown = Some(completion.clone());
        completions.push(sample(&[service], Value::Buckets(completion)));
    }
    vec![
        Family::counter(
            "fenxi_service_flows_total",
            "flows",
            &["service", "event"],
            "Flows of services: begun; answered; ended; of these reset; unanswered SYNs.",
            flows,
        ),
        Family::gauge(
            "fenxi_service_flows_in_flight",
            "flows",
            &["service"],
            "Flows of services that have not ended.",
            in_flight,
        ),
        Family::counter(
            "fenxi_service_packets_total",
            "packets",
            &["service", "direction"],
            "Packets to servers (in), from them (out).",
            packets,
        ),
        Family::counter(
            "fenxi_service_bytes_total",
            "bytes",
            &["service", "direction"],
            "Bytes of these, at the IP layer.",
            bytes,
        ),
        histogram(completions),
    ]
}

fn histogram(samples: Vec<Sample>) -> Family {
    let mut family = Family::gauge(
        "fenxi_service_completion_seconds",
        "seconds",
        &["service"],
        "Time from a flow's first packet to the second FIN.",
        samples,
    );
    family.metric.kind = crate::metric::Kind::Histogram;
    family
}

/// What was counted stays: histograms are published in turn, so while a slot changes hands its
/// counts are in none.
fn keep(now: &mut Buckets, before: &Buckets) {
    (now.sum, now.count) = (now.sum.max(before.sum), now.count.max(before.count));
    for ((_, now), (_, before)) in now.cumulative.iter_mut().zip(&before.cumulative) {
        *now = (*now).max(*before);
    }
}

fn completion(memories: &[Memory]) -> Buckets {
    let bounds: Vec<f64> = BOUNDS.map(|bit| (1_u64 << bit) as f64 * 1e-9).collect();
    let mut buckets = Buckets::new(&bounds);
    for Memory { reader, .. } in memories {
        let mut snapshot = reader.snapshot();
        let field = reader.field("completion", Kind::Histogram);
        let (Some(field), Ok(())) = (field, reader.read(&mut snapshot)) else { continue };
        for row in snapshot.egresses() {
            let Ok(histograms) = reader.histograms(row.slot()) else { continue };
            let Some((sum_ns, counts)) = histograms.histogram(field) else { continue };
            buckets.sum += sum_ns as f64 * 1e-9;
            buckets.count += counts.iter().sum::<u64>();
            for (bit, (_, below)) in BOUNDS.zip(&mut buckets.cumulative) {
                // Bucket b holds values below 2^(b+1).
                *below += counts[..bit].iter().sum::<u64>();
            }
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_never_falls() {
        let with = |counts: [u64; 3], count| Buckets {
            cumulative: [0.1, 0.2, 0.3].into_iter().zip(counts).collect(),
            sum: count as f64,
            count,
        };
        let mut now = with([0, 5, 9], 9);
        keep(&mut now, &with([2, 6, 8], 8));
        assert_eq!(now, with([2, 6, 9], 9));
    }
}
