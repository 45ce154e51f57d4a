//! Rates of servers, from the sums of two reports.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::protocol::{EgressRow, ServiceRow};

/// Least time that a rate is taken over. Reports come once a second, and with each scrape.
const OVER_MIN: Duration = Duration::from_millis(900);

/// Flows begun and bytes, of the servers of a service by name.
type Sums = HashMap<String, [u64; 2]>;

/// The rates of all services over about a second.
#[derive(Default)]
pub struct Rates {
    at: Option<Instant>,
    sums: HashMap<String, Sums>,
    /// New flows and bytes per second.
    rates: HashMap<String, HashMap<String, [f64; 2]>>,
}

fn sums(row: &EgressRow) -> [u64; 2] {
    [row.flows_begun, row.bytes_in + row.bytes_out]
}

impl Rates {
    /// Takes in what the services have counted by now.
    pub fn note(&mut self, services: &[ServiceRow], now: Instant) {
        let elapsed = self.at.map(|at| now.saturating_duration_since(at));
        if elapsed.is_some_and(|elapsed| elapsed < OVER_MIN) {
            return;
        }
        self.at = Some(now);
        self.rates.clear();
        let mut before = std::mem::take(&mut self.sums);
        for service in services {
            let egresses = service.egresses.iter();
            let sums: Sums = egresses.map(|row| (row.egress.clone(), sums(row))).collect();
            if let (Some(before), Some(elapsed)) = (before.remove(&service.name), elapsed) {
                self.rates.insert(service.name.clone(), rates(&before, &sums, elapsed));
            }
            self.sums.insert(service.name.clone(), sums);
        }
    }

    /// Adds the rates to the rows.
    pub fn fill(&self, service: &mut ServiceRow) {
        let Some(rates) = self.rates.get(&service.name) else { return };
        for row in &mut service.egresses {
            let rates = rates.get(&row.egress);
            row.flows_per_s = rates.map(|[flows, _]| *flows);
            row.bytes_per_s = rates.map(|[_, bytes]| *bytes);
        }
    }
}

/// A server that loses its place adds its sums to the row of all others, so the rate of that row is
/// what is left of the rate of the service.
fn rates(before: &Sums, now: &Sums, elapsed: Duration) -> HashMap<String, [f64; 2]> {
    let total = |of: &Sums, at: usize| of.values().map(|sums| sums[at]).sum::<u64>();
    let mut left = [0, 1].map(|at| total(now, at).saturating_sub(total(before, at)));
    let mut rates = HashMap::new();
    let per_s = |came: [u64; 2]| came.map(|came| came as f64 / elapsed.as_secs_f64());
    for (egress, sums) in now.iter().filter(|(egress, _)| *egress != EgressRow::OTHERS) {
        let then = before.get(egress).copied().unwrap_or_default();
        // A service that was changed counts from 0 again.
        let came = [0, 1].map(|at| sums[at].checked_sub(then[at]).unwrap_or(sums[at]));
        left = [0, 1].map(|at| left[at].saturating_sub(came[at]));
        rates.insert(egress.clone(), per_s(came));
    }
    if now.contains_key(EgressRow::OTHERS) {
        rates.insert(EgressRow::OTHERS.to_owned(), per_s(left));
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(egresses: &[(&str, u64, u64)]) -> ServiceRow {
        let row = |&(egress, flows_begun, bytes_in): &(&str, u64, u64)| EgressRow {
            egress: egress.to_owned(),
            flows_begun,
            bytes_in,
            ..EgressRow::default()
        };
        let egresses = egresses.iter().map(row).collect();
        ServiceRow { name: "web".to_owned(), files: Vec::new(), egresses }
    }

    #[test]
    fn rates_are_what_came_in_the_time_between_two_reports() {
        let (mut rates, begin) = (Rates::default(), Instant::now());
        let mut note = |after_ms, egresses: &[_]| {
            let mut row = service(egresses);
            rates.note(std::slice::from_ref(&row), begin + Duration::from_millis(after_ms));
            rates.fill(&mut row);
            let rate = |it: &EgressRow| Some((it.flows_per_s?, it.bytes_per_s?));
            row.egresses.iter().map(rate).collect::<Vec<_>>()
        };
        let before = [("10.0.0.1", 10, 1000), ("10.0.0.2", 20, 2000), ("others", 0, 0)];
        assert_eq!(note(0, &before), [None; 3]);
        // Server 2 has lost its place to server 3.
        let now = [("10.0.0.1", 14, 3000), ("10.0.0.3", 2, 400), ("others", 26, 2600)];
        let expected = [Some((2.0, 1000.0)), Some((1.0, 200.0)), Some((3.0, 300.0))];
        assert_eq!(note(2000, &now), expected);
        assert_eq!(note(2100, &now), expected, "not over a tenth of a second");
        // It was changed, and counts anew.
        assert_eq!(note(3100, &[("10.0.0.1", 5, 100)]), [Some((5.0 / 1.1, 100.0 / 1.1))]);
    }
}
