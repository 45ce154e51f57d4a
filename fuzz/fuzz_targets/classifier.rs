//! Any filters and keys: the classifier finds what linear search finds, before and after filters
//! are added.
//!
//! Filters come from few bytes each, so that they nest, repeat and overlap; enough of them are made
//! for a model to be trained.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use policy::classifier::{Classifier, Hit, Linear};
use policy::{Address, Filter, Key, Ports, Rank};

/// A filter in a few bytes.
#[derive(Arbitrary, Debug, Clone, Copy)]
struct Box {
    source: u16,
    destination: u16,
    lengths: [u8; 2],
    source_ports: [u8; 2],
    destination_ports: [u8; 2],
    protocol: u8,
    priority: u8,
}

#[derive(Arbitrary, Debug)]
struct Input {
    boxes: Vec<Box>,
    /// Copies of the boxes, each moved by so much, so that there are enough for a model.
    copies: u8,
    step: u32,
    added: Vec<Box>,
    keys: Vec<(u16, u16, u8, u8, bool)>,
    v6: bool,
}

fn address<A: Address>(bits: u16, copy: u32, step: u32) -> A {
    let upper = (u32::from(bits) << 16).wrapping_add(copy.wrapping_mul(step));
    A::of_upper(u128::from(upper) << 96 | u128::from(upper) << 40)
}

fn filter<A: Address>(it: &Box, number: u32, copy: u32, step: u32) -> Filter<A> {
    let [source_length, destination_length] = it.lengths.map(|length| length % (A::BITS + 1));
    let ports = |[one, other]: [u8; 2]| Ports {
        first: u16::from(one.min(other)) << 8,
        last: u16::from(one.max(other)) << 8 | u16::from(one & 1) * 0xff,
    };
    Filter {
        source: address::<A>(it.source, copy, step).prefix(source_length),
        destination: address::<A>(it.destination, copy, step / 3).prefix(destination_length),
        source_length,
        destination_length,
        protocol: [None, Some(6), Some(17), Some(0)][usize::from(it.protocol % 4)],
        in_port: it.protocol >> 2 & 1,
        source_ports: ports(it.source_ports),
        destination_ports: ports(it.destination_ports),
        rule: number,
        is_conditional: it.priority & 1 != 0,
        rank: Rank::new(u32::from(it.priority) >> 4, number),
    }
}

fn agrees<A: Address>(input: &Input) {
    let copies = u32::from(input.copies).min(4096 / (input.boxes.len() as u32 + 1));
    let mut filters: Vec<Filter<A>> = Vec::new();
    for copy in 0..=copies {
        for it in &input.boxes {
            filters.push(filter(it, filters.len() as u32, copy, input.step));
        }
    }
    let mut keys: Vec<Key<A>> =
        filters.iter().step_by(7).zip(1..).map(|(it, number)| it.key(number)).collect();
    keys.extend(input.keys.iter().map(
        |&(source, destination, source_port, destination_port, is_udp)| Key {
            source: address(source, 0, 0),
            destination: address(destination, 0, 0),
            source_port: u16::from(source_port) << 8,
            destination_port: u16::from(destination_port) << 8,
            protocol: if is_udp { 17 } else { 6 },
            in_port: source_port & 1,
        },
    ));
    let mut classifier = Classifier::new(&filters).expect("few filters");
    same(&classifier, &filters, &keys);
    for it in &input.added {
        let added = filter(it, filters.len() as u32, 0, 0);
        classifier.insert(&added).expect("few filters");
        filters.push(added);
    }
    same(&classifier, &filters, &keys);
}

fn same<A: Address>(classifier: &Classifier<A>, filters: &[Filter<A>], keys: &[Key<A>]) {
    let holds = |place: usize, rule: u32| (place as u32 + rule) % 3 != 0;
    let counts = |hit: Hit| !hit.is_conditional || holds(hit.place, hit.rule);
    let linear = Linear::new(filters);
    let mut found = vec![None; keys.len()];
    classifier.find(keys, counts, &mut found);
    for (place, (key, found)) in keys.iter().zip(found).enumerate() {
        assert_eq!(found, linear.find(key, |rule| holds(place, rule)), "{key:?}");
    }
}

fuzz_target!(|input: Input| {
    match input.v6 {
        true => agrees::<u128>(&input),
        false => agrees::<u32>(&input),
    }
});
