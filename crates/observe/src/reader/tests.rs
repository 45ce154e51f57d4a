use std::net::{IpAddr, Ipv6Addr};

use super::*;
use crate::layout::SAMPLES;
use crate::writer::{Measure, Service, Value};

fn fields() -> Vec<Field> {
    vec![
        Field::new("packets", "packets", Kind::Counter),
        Field::new("in_flight", "flows", Kind::Gauge),
        Field::new("gap", "ns", Kind::Window),
        Field::new("gap", "ns", Kind::Histogram),
        Field::new("response", "ns", Kind::Reservoir),
    ]
}

struct Both {
    writer: Writer,
    reader: Reader,
    packets: Value,
    gap: Measure,
    response: Measure,
}

impl Both {
    fn new(egresses: usize) -> Self {
        let fields = fields();
        let service = Service {
            name: "web",
            egresses,
            fields: &fields,
            epoch_ns: 7,
            writer: (1, 2),
            seed: 3,
        };
        let writer = Writer::in_memory(&service).unwrap();
        let reader = Reader::of(&writer).unwrap();
        let packets = writer.value("packets").unwrap();
        let [gap, response] = ["gap", "response"].map(|name| writer.measure(name).unwrap());
        Self { writer, reader, packets, gap, response }
    }

    fn samples(&self, slot: Slot, name: &str) -> Result<Vec<Sample>, Error> {
        let field = self.reader.fields().iter();
        let field = field.clone().find(|field| field.name == name && field.kind.is_sampled());
        self.reader.samples(slot, field.unwrap())
    }
}

fn server(port: u16) -> Egress {
    Egress::server(IpAddr::V6(Ipv6Addr::LOCALHOST), port)
}

#[test]
fn the_header_says_whose_it_is() {
    let Both { writer, reader, .. } = Both::new(4);
    assert_eq!(reader.name().as_deref(), Some("web"));
    assert_eq!((reader.epoch_ns(), reader.writer()), (7, (1, 2)));
    assert_eq!(reader.fields().len(), 5);
    assert_eq!(reader.field("gap", Kind::Histogram).unwrap().unit, "ns");
    assert!(reader.field("gap", Kind::Counter).is_none());
    assert!(!reader.is_ended());
    drop(writer);
    assert!(reader.is_ended());
}

#[test]
fn a_snapshot_is_of_the_last_publication() {
    // Under Miri each of them takes a second.
    let (count, times) = if cfg!(miri) { (4, 3) } else { (70, 10) };
    let mut both = Both::new(count);
    let mut snapshot = both.reader.snapshot();
    both.reader.read(&mut snapshot).unwrap();
    assert_eq!((snapshot.time_ns(), snapshot.egresses().count()), (0, 0));
    let slots: Vec<Slot> =
        (0..count as u16).map(|port| both.writer.insert(&server(port)).unwrap()).collect();
    for (n, slot) in slots.iter().enumerate() {
        both.writer.add(*slot, both.packets, n as u64);
    }
    both.reader.read(&mut snapshot).unwrap();
    assert_eq!(snapshot.egresses().count(), 0, "not published yet");
    for time in 1..times {
        both.writer.add(slots[count - 1], both.packets, 1);
        both.writer.publish(time);
        both.reader.read(&mut snapshot).unwrap();
        assert_eq!((snapshot.time_ns(), snapshot.generation()), (time, count as u64));
        let field = both.reader.field("packets", Kind::Counter).unwrap();
        let values: Vec<u64> = snapshot.egresses().map(|row| row.value(field).unwrap()).collect();
        let expected: Vec<u64> = (0..count as u64 - 1).chain([count as u64 - 1 + time]).collect();
        assert_eq!(values, expected);
        let found: Vec<Slot> = snapshot.egresses().map(|row| row.slot()).collect();
        assert_eq!(found, slots);
        assert_eq!(snapshot.egresses().nth(3).unwrap().egress(), server(3));
        let histogram = both.reader.field("gap", Kind::Histogram).unwrap();
        assert_eq!(snapshot.egresses().next().unwrap().value(histogram), None);
    }
}

#[test]
fn a_removed_egress_leaves_the_next_snapshot() {
    let mut both = Both::new(3);
    let slots = [1, 2, 3].map(|port| both.writer.insert(&server(port)).unwrap());
    both.writer.remove(slots[2]);
    both.writer.remove(slots[0]);
    both.writer.publish(1);
    let mut snapshot = both.reader.snapshot();
    both.reader.read(&mut snapshot).unwrap();
    let found: Vec<Egress> = snapshot.egresses().map(|row| row.egress()).collect();
    assert_eq!((found.as_slice(), snapshot.generation()), ([server(2)].as_slice(), 5));
}

#[test]
fn a_window_holds_the_newest_samples_in_order() {
    let mut both = Both::new(2);
    let slot = both.writer.insert(&server(1)).unwrap();
    let taken = SAMPLES as u64 + 50;
    for n in 1..=taken {
        both.writer.sample(slot, both.gap, 1000 + n, 10 * n);
    }
    let samples = both.samples(slot, "gap").unwrap();
    let expected = (51..=taken).map(|n| Sample { number: n, time_ns: 1000 + n, value: 10 * n });
    assert_eq!(samples, expected.collect::<Vec<_>>());
}

/// The age of a kept sample is exponential: 1/e of all slots are older than k samples.
#[cfg_attr(miri, ignore = "statistics, which take minutes")]
#[test]
fn a_reservoir_fades_exponentially() {
    let mut both = Both::new(1);
    let slot = both.writer.insert(&server(1)).unwrap();
    let mut older = 0;
    let rounds = 100;
    let mut taken = 0;
    for _ in 0..rounds {
        for _ in 0..8 * SAMPLES {
            taken += 1;
            both.writer.sample(slot, both.response, taken, taken);
        }
        let samples = both.samples(slot, "response").unwrap();
        assert!(samples.len() > SAMPLES - 2);
        let is_old = |sample: &&Sample| taken - sample.number >= SAMPLES as u64;
        older += samples.iter().filter(is_old).count();
    }
    let share = older as f64 / (rounds * SAMPLES) as f64;
    assert!((share - (-1f64).exp()).abs() < 0.02, "{share}");
}

#[test]
fn histograms_are_published_in_turn() {
    let mut both = Both::new(3);
    let slots = [1, 2, 3].map(|port| both.writer.insert(&server(port)).unwrap());
    for (n, slot) in slots.into_iter().enumerate() {
        for value in [0, 1, 1000, 1 << n] {
            both.writer.sample(slot, both.gap, 1, value);
        }
    }
    let field = both.reader.field("gap", Kind::Histogram).unwrap();
    assert!(matches!(both.reader.histograms(slots[0]), Err(Error::Changed)));
    for (time, slot) in (1..).zip(slots) {
        both.writer.publish(time);
        let histograms = both.reader.histograms(slot).unwrap();
        let (sum, buckets) = histograms.histogram(field).unwrap();
        let n = slot.index as usize;
        assert_eq!((histograms.time_ns(), sum), (time, 1001 + (1 << n)));
        assert_eq!((buckets.iter().sum::<u64>(), buckets[9]), (4, 1));
        assert!(buckets[n] >= 1);
    }
    both.writer.publish(9);
    assert_eq!(both.reader.histograms(slots[2]).unwrap().time_ns(), 3, "nothing is new");
}

#[test]
fn the_next_egress_of_a_slot_has_nothing_of_the_last() {
    let mut both = Both::new(1);
    let first = both.writer.insert(&server(1)).unwrap();
    both.writer.sample(first, both.gap, 1, 1);
    both.writer.sample(first, both.response, 1, 1);
    both.writer.publish(1);
    both.writer.remove(first);
    assert_eq!(both.samples(first, "gap").unwrap().len(), 1, "readable until the slot is reused");
    let second = both.writer.insert(&server(2)).unwrap();
    for name in ["gap", "response"] {
        assert!(matches!(both.samples(first, name), Err(Error::Changed)));
        assert_eq!(both.samples(second, name).unwrap(), []);
    }
    assert!(matches!(both.reader.histograms(second), Err(Error::Changed)));
    both.writer.publish(2);
    assert!(matches!(both.reader.histograms(first), Err(Error::Changed)));
    let histograms = both.reader.histograms(second).unwrap();
    let field = both.reader.field("gap", Kind::Histogram).unwrap();
    assert_eq!(histograms.histogram(field).unwrap(), (0, [0; BUCKETS].as_slice()));
    both.writer.sample(second, both.gap, 2, 2);
    assert_eq!(both.samples(second, "gap").unwrap()[0].number, 2, "numbers go on");
}

/// A writer that died while it wrote a sample or a frame.
#[test]
fn a_dead_writer_leaves_everything_else_readable() {
    let mut both = Both::new(1);
    let slot = both.writer.insert(&server(1)).unwrap();
    for n in 1..=3 {
        both.writer.sample(slot, both.gap, n, n);
        both.writer.publish(n);
    }
    let layout = Layout::new(1, &fields()).unwrap();
    let memory = both.writer.memory().clone();
    let second = layout.reservoirs + layout.fields[2].offset + 2 * crate::sample::SAMPLE_WORDS;
    memory[second].store(5, Ordering::Relaxed);
    let next = layout.frames + (4 % BUFFERS) * layout.frame_words;
    for word in &memory[next..next + layout.frame_words] {
        word.store(u64::MAX, Ordering::Relaxed);
    }
    let left: Vec<u64> = both.samples(slot, "gap").unwrap().iter().map(|it| it.number).collect();
    assert_eq!(left, [1, 3]);
    let mut snapshot = both.reader.snapshot();
    both.reader.read(&mut snapshot).unwrap();
    assert_eq!(snapshot.time_ns(), 3);
}

/// Every word behind the header, all ones or random: errors or values, nothing else.
#[test]
fn no_content_is_trusted() {
    let both = Both::new(2);
    let memory = both.writer.memory().clone();
    let layout = Layout::new(2, &fields()).unwrap();
    let mut random = 1u64;
    for round in 0..if cfg!(miri) { 2 } else { 50 } {
        for word in memory[layout.frames..].iter().chain(&memory[PUBLISHED..SCHEMA_END]) {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let value = if round == 0 { u64::MAX } else { random >> (random % 64) };
            word.store(value, Ordering::Relaxed);
        }
        let mut snapshot = both.reader.snapshot();
        match both.reader.read(&mut snapshot) {
            Ok(()) => assert!(snapshot.egresses().count() <= 2),
            Err(error) => {
                assert!(matches!(error, Error::Malformed(_)), "{error}");
                assert_eq!(snapshot.egresses().count(), 0);
            }
        }
        for index in [0, 1, 2, u32::MAX] {
            for incarnation in [0, 1, u32::MAX] {
                let slot = Slot { index, incarnation };
                let _ = both.reader.histograms(slot);
                let _ = both.samples(slot, "gap");
            }
        }
    }
}

/// The words that change in the header end here, before the schema.
const SCHEMA_END: usize = crate::layout::SCHEMA;

#[test]
fn fields_of_another_file_are_not_read() {
    let mut both = Both::new(1);
    let slot = both.writer.insert(&server(1)).unwrap();
    both.writer.publish_all(1);
    let mut field = both.reader.field("gap", Kind::Window).unwrap().clone();
    field.offset += 3;
    assert!(both.reader.samples(slot, &field).is_err());
    let mut field = both.reader.field("gap", Kind::Histogram).unwrap().clone();
    field.offset = usize::MAX - 100;
    assert_eq!(both.reader.histograms(slot).unwrap().histogram(&field), None);
}

#[test]
fn a_reader_beside_a_writer_sees_no_mixture() {
    let mut both = Both::new(4);
    let slots = [1, 2, 3, 4].map(|port| both.writer.insert(&server(port)).unwrap());
    both.writer.publish(0);
    let rounds = if cfg!(miri) { 30 } else { 20_000 };
    let Both { mut writer, reader, packets, gap, .. } = both;
    let window = reader.field("gap", Kind::Window).unwrap().clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for time in 1..=rounds {
                for slot in slots {
                    writer.add(slot, packets, 1);
                    writer.sample(slot, gap, time, 3 * time);
                }
                writer.publish(time);
            }
        });
        let field = reader.field("packets", Kind::Counter).unwrap();
        let mut snapshot = reader.snapshot();
        while !reader.is_ended() {
            if reader.read(&mut snapshot).is_ok() {
                for row in snapshot.egresses() {
                    assert_eq!(row.value(field), Some(snapshot.time_ns()));
                }
            }
            for sample in reader.samples(slots[0], &window).unwrap() {
                assert_eq!(sample.value, 3 * sample.time_ns);
            }
        }
    });
}
