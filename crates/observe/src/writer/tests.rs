use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::egress::EgressKind;

fn writer(egresses: usize) -> Writer {
    let fields = [
        Field::new("flows", "flows", Kind::Counter),
        Field::new("in_flight", "flows", Kind::Gauge),
        Field::new("gap", "ns", Kind::Window),
        Field::new("gap", "ns", Kind::Histogram),
        Field::new("response", "ns", Kind::Reservoir),
    ];
    let service =
        Service { name: "web", egresses, fields: &fields, epoch_ns: 7, writer: (0, 1), seed: 1 };
    Writer::in_memory(&service).unwrap()
}

fn server(last: u8) -> Egress {
    Egress::server(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 80)
}

#[test]
fn an_egress_has_one_slot_until_it_is_removed() {
    let mut writer = writer(3);
    let slots: Vec<Slot> = [9, 1, 5].map(|last| writer.insert(&server(last)).unwrap()).into();
    for (last, slot) in [9, 1, 5].into_iter().zip(&slots) {
        assert_eq!(writer.lookup(&server(last)), Some(*slot));
        assert_eq!(writer.insert(&server(last)), Some(*slot));
    }
    assert_eq!(writer.insert(&server(7)), None, "full");
    writer.remove(slots[1]);
    assert_eq!(writer.lookup(&server(1)), None);
    let next = writer.insert(&server(7)).unwrap();
    assert_eq!((next.index, next.incarnation), (slots[1].index, 4));
    assert_eq!(writer.lookup(&server(9)), Some(slots[0]));
    writer.remove(slots[1]);
    assert_eq!(writer.lookup(&server(7)), Some(next), "a stale slot removes nothing");
}

#[test]
fn kinds_and_ports_are_identities_too() {
    let mut writer = writer(8);
    let others = Egress { kind: EgressKind::OTHERS, address: [0; 16], port: 0 };
    let all = [
        server(1),
        Egress { port: 443, ..server(1) },
        Egress { kind: EgressKind::NEXT_HOP, ..server(1) },
        Egress { kind: EgressKind::OUT_PORT, port: 70_000, ..others },
        others,
    ];
    let slots = all.map(|egress| writer.insert(&egress).unwrap());
    for (egress, slot) in all.iter().zip(slots) {
        assert_eq!(writer.lookup(egress), Some(slot));
        assert_eq!(Egress::from_words(egress.to_words()), *egress);
    }
}

#[test]
fn what_a_removed_egress_still_measures_is_dropped() {
    let mut writer = writer(1);
    let (flows, gap) = (writer.value("flows").unwrap(), writer.measure("gap").unwrap());
    let first = writer.insert(&server(1)).unwrap();
    writer.add(first, flows, 5);
    writer.remove(first);
    let second = writer.insert(&server(2)).unwrap();
    for slot in [first, Slot { index: 9, incarnation: 1 }, Slot { index: 0, incarnation: 0 }] {
        writer.add(slot, flows, 1);
        writer.sample(slot, gap, 1, 1);
    }
    let row = writer.row(second.index as usize);
    assert_eq!(writer.frame[row + flows.offset], 0);
    assert_eq!(writer.taken[0], 0);
}

#[test]
fn an_egress_that_goes_leaves_its_sums_to_another() {
    let mut writer = writer(3);
    let [flows, in_flight] = ["flows", "in_flight"].map(|name| writer.value(name).unwrap());
    let gap = writer.measure("gap").unwrap();
    let [one, two] = [1, 2].map(|last| writer.insert(&server(last)).unwrap());
    assert!(writer.add_all(one, &[(flows, 3), (in_flight, 2)]));
    assert!(writer.add_all(two, &[(flows, 4), (in_flight, 1)]));
    for (slot, value) in [(one, 5), (two, 5), (two, 100)] {
        writer.sample(slot, gap, 1, value);
    }
    writer.fold(two, two);
    writer.fold(two, one);
    assert_eq!((writer.get(one, flows), writer.get(one, in_flight)), (Some(7), Some(3)));
    assert_eq!((writer.get(two, flows), writer.lookup(&server(2))), (None, None));
    assert!(!writer.add_all(two, &[(flows, 1)]));
    writer.publish_all(1);
    let reader = crate::Reader::of(&writer).unwrap();
    let field = reader.field("gap", Kind::Histogram).unwrap();
    let (sum, counts) = (110, [2, 1]);
    let histograms = reader.histograms(one).unwrap();
    let found = histograms.histogram(field).unwrap();
    assert_eq!((found.0, [found.1[2], found.1[6]]), (sum, counts));
}

#[test]
fn a_gauge_does_not_fall_below_zero() {
    let mut writer = writer(1);
    let gauge = writer.value("in_flight").unwrap();
    let slot = writer.insert(&server(1)).unwrap();
    writer.add(slot, gauge, 2);
    writer.subtract(slot, gauge, 3);
    assert_eq!(writer.frame[writer.row(0) + gauge.offset], 0);
}

#[test]
fn buckets_are_powers_of_two() {
    for (value, expected) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (1023, 9), (u64::MAX, 63)] {
        assert_eq!(bucket(value), expected, "{value}");
    }
}

#[test]
fn measures_are_found_by_name() {
    let writer = writer(1);
    assert!(writer.value("gap").is_none() && writer.measure("flows").is_none());
    let gap = writer.measure("gap").unwrap();
    assert!(gap.samples.unwrap().is_window && gap.histogram.is_some());
    let response = writer.measure("response").unwrap();
    assert!(!response.samples.unwrap().is_window && response.histogram.is_none());
}
