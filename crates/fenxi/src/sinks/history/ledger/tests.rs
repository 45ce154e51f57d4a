//! Which row a record counts for.

use std::net::IpAddr;

use config::Sources;
use flowmgr::Counts;
use flowmgr::record::{DecidedBy, Decision, EndReason, FlowName, FlowRecord};

use super::*;

const HOUR: i64 = 498_790;

fn config(text: &str) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, text).unwrap();
    crate::sinks::known(Sources::named(Some(&file), &[])).load().unwrap().config
}

fn ledger(text: &str) -> Ledger {
    let config = config(text);
    Ledger::new(&config, Services::from_config(&config))
}

fn end(text: &str) -> (IpAddr, u16) {
    let (host, port) = text.rsplit_once(':').unwrap();
    (host.parse().unwrap(), port.parse().unwrap())
}

/// 1 packet of 10 bytes there, 2 of 200 bytes back, in the last minute of an hour.
fn flow(source: &str, destination: &str) -> FlowRecord {
    FlowRecord {
        flow: FlowName {
            flow_id: 1,
            protocol: TCP,
            source: end(source),
            destination: end(destination),
            first_us: 0,
        },
        last_us: HOUR * HOUR_US + HOUR_US - 1,
        midstream: false,
        counts: Counts { packets: [1, 2], bytes: [10, 200] },
        reason: EndReason::Fin,
        is_half_open: false,
        decisions: [None; cring::TASKS_MAX],
        series: None,
        rule: None,
        behaviour: flowmgr::Behaviour::None,
        headers: Default::default(),
        measured: None,
    }
}

/// Rows as `HOST SERVICE FLOWS UP DOWN`.
fn rows(ledger: &Ledger) -> Vec<String> {
    let row = |(key, it): (&Key, &Volume)| {
        assert_eq!(key.hour, HOUR);
        let (host, service) = match &key.of {
            Some((host, service)) => (host.to_string(), service.to_string()),
            None => ("-".to_owned(), "-".to_owned()),
        };
        format!(
            "{host} {service} {} {}/{} {}/{}",
            it.flows, it.packets_up, it.bytes_up, it.packets_down, it.bytes_down
        )
    };
    let mut rows: Vec<String> = ledger.rows.iter().map(row).collect();
    rows.sort();
    rows
}

#[test]
fn up_is_from_the_host_inside_whoever_began() {
    let mut ledger = ledger("");
    ledger.add(&flow("10.0.0.5:4000", "192.0.2.1:443"));
    ledger.add(&flow("192.0.2.7:5000", "10.0.0.9:22"));
    let udp = flow("10.0.0.5:4000", "192.0.2.1:53");
    ledger.add(&FlowRecord { flow: FlowName { protocol: UDP, ..udp.flow }, ..udp });
    assert_eq!(
        rows(&ledger),
        [
            "10.0.0.5 443/tcp 1 1/10 2/200",
            "10.0.0.5 53/udp 1 1/10 2/200",
            "10.0.0.9 22/tcp 1 2/200 1/10"
        ]
    );
}

#[test]
fn a_flow_counts_once_and_its_bytes_as_they_come() {
    let mut ledger = ledger("");
    let last = flow("10.0.0.5:4000", "192.0.2.1:443");
    ledger.add(&FlowRecord { reason: EndReason::Active, ..last.clone() });
    ledger.add(&FlowRecord { reason: EndReason::Active, ..last.clone() });
    ledger.add(&last);
    assert_eq!(rows(&ledger), ["10.0.0.5 443/tcp 1 3/30 6/600"]);
}

#[test]
fn a_flow_that_began_unseen_is_of_the_lower_port() {
    let mut ledger = ledger("");
    let seen_late = flow("10.0.0.5:22", "10.0.0.9:4000");
    ledger.add(&FlowRecord { midstream: true, ..seen_late });
    assert_eq!(rows(&ledger), ["10.0.0.5 22/tcp 1 1/10 2/200"]);
}

#[test]
fn services_of_the_configuration_have_their_names() {
    let text = "[service.web]\nservers = [\"192.0.2.0/24\"]\nports = [443]\nprotocol = \"tcp\"\n\
                [service.rest]\nservers = [\"192.0.2.0/23\"]\n";
    let mut ledger = ledger(text);
    for to in ["192.0.2.1:443", "192.0.2.1:80", "198.51.100.1:80"] {
        ledger.add(&flow("10.0.0.5:4000", to));
    }
    let found = rows(&ledger);
    let services: Vec<&str> = found.iter().filter_map(|row| row.split(' ').nth(1)).collect();
    assert_eq!(services, ["80/tcp", "rest", "web"]);
    ledger.take_services(Services::default());
    ledger.add(&flow("10.0.0.5:4000", "192.0.2.1:443"));
    assert_eq!(rows(&ledger).len(), 4);
}

#[test]
fn a_flood_takes_bounded_memory_and_labels_stay_right() {
    let mut ledger = ledger("");
    let mut fates = [0_u64; 3];
    for number in 0..3 * ROWS_MAX {
        let host = format!("10.{}.{}.{}:1", number >> 16, number >> 8 & 255, number & 255);
        fates[ledger.add(&flow(&host, "192.0.2.1:443")) as usize] += 1;
    }
    assert_eq!(fates, [ROWS_MAX as u64, 2 * ROWS_MAX as u64, 0]);
    assert_eq!(ledger.rows.len(), ROWS_MAX + 1);
    let flows: u64 = ledger.rows.values().map(|it| it.flows).sum();
    assert_eq!(flows, 3 * ROWS_MAX as u64);
    // While nothing is written, hours and labels pass; in the end they are lost and counted.
    let decision = Decision {
        class: 0,
        confidence: 0,
        decided_by: DecidedBy::Model,
        depth: 1,
        model: 0,
        contradicts: None,
        time_to_label_us: None,
        truth: None,
    };
    for class in 0..=u16::MAX {
        let mut labelled = flow("10.0.0.1:1", "192.0.2.1:444");
        labelled.decisions[0] = Some(Decision { class, ..decision });
        fates[ledger.add(&labelled) as usize] += 1;
    }
    assert_eq!(ledger.rows.len(), 2 * ROWS_MAX);
    assert!(fates[2] > 0);
}
