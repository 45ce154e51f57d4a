//! The series ring beside `rtrb` and crossbeam's `ArrayQueue`, all three carrying the same 128-byte slots.
//!
//! *Same core*: one thread pushes a batch of 32 slots, then pops them; what remains is the cost of the instructions.
//! *Cross core*: one thread streams slots to another as fast as both can; what counts is how often cache lines travel.
//! Every sender fills a series of ten packets, every receiver reads some of it, and the sum of what was read is checked.
//! `rtrb` is there twice, slot by slot and by its chunks, which like our batches publish and release many slots at once.
//!
//! A thread that cannot go on yields, so that the figures mean something on two cores that do other work, too.

use cring::{Feature, Features, Slot};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use std::hint::black_box;
use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const SLOTS: usize = 1024;
const BATCH: u64 = 32;
/// Slots streamed per iteration across cores, so that starting a thread does not count.
const STREAM: u64 = 4096;

trait Sender: Send + 'static {
    /// Sends slots of these numbers until the queue is full; returns how many.
    fn send(&mut self, numbers: Range<u64>) -> u64;
}

trait Receiver: Send + 'static {
    /// Receives what is there, adds it to the checksum; returns how many.
    fn receive(&mut self, checksum: &mut u64) -> u64;
}

#[inline]
fn fill(slot: &mut Slot, number: u64) {
    slot.flow.index = number as u32;
    slot.kth_us = number as i64;
    slot.emitted_ns = number;
    slot.series.begin(6, 10, Features::LENGTHS);
    slot.series.directions = number as u32;
    slot.series
        .channel_mut(Feature::SignedLength)
        .fill(number as u16);
}

#[inline]
fn filled(number: u64) -> Slot {
    let mut slot = Slot::default();
    fill(&mut slot, number);
    slot
}

#[inline]
fn read(slot: &Slot) -> u64 {
    slot.emitted_ns + u64::from(slot.series.channel(Feature::SignedLength)[9])
}

fn checksum_of(numbers: Range<u64>) -> u64 {
    numbers
        .map(|number| number + u64::from(number as u16))
        .sum()
}

impl Sender for cring::Producer<Slot> {
    fn send(&mut self, numbers: Range<u64>) -> u64 {
        let sent = numbers
            .take_while(|&number| self.push(|slot| fill(slot, number)))
            .count();
        self.publish();
        sent as u64
    }
}

impl Receiver for cring::Consumer<Slot> {
    fn receive(&mut self, checksum: &mut u64) -> u64 {
        let waiting = self.waiting().min(BATCH as usize);
        *checksum += (0..waiting).map(|i| read(self.get(i))).sum::<u64>();
        self.release(waiting);
        waiting as u64
    }
}

struct Single<T>(T);

impl Sender for Single<rtrb::Producer<Slot>> {
    fn send(&mut self, numbers: Range<u64>) -> u64 {
        numbers
            .take_while(|&number| self.0.push(filled(number)).is_ok())
            .count() as u64
    }
}

impl Receiver for Single<rtrb::Consumer<Slot>> {
    fn receive(&mut self, checksum: &mut u64) -> u64 {
        let slots = std::iter::from_fn(|| self.0.pop().ok()).take(BATCH as usize);
        slots.map(|slot| *checksum += read(&slot)).count() as u64
    }
}

struct Chunks<T>(T);

impl Sender for Chunks<rtrb::Producer<Slot>> {
    fn send(&mut self, numbers: Range<u64>) -> u64 {
        let wanted = (numbers.end - numbers.start) as usize;
        let room = if self.0.write_chunk_uninit(wanted).is_ok() {
            wanted
        } else {
            self.0.slots()
        };
        let chunk = self.0.write_chunk_uninit(room).expect("asked just before");
        chunk.fill_from_iter(numbers.map(filled)) as u64
    }
}

impl Receiver for Chunks<rtrb::Consumer<Slot>> {
    fn receive(&mut self, checksum: &mut u64) -> u64 {
        let waiting = self.0.slots().min(BATCH as usize);
        let chunk = self.0.read_chunk(waiting).expect("asked just before");
        let (first, second) = chunk.as_slices();
        *checksum += first.iter().chain(second).map(read).sum::<u64>();
        chunk.commit_all();
        waiting as u64
    }
}

impl Sender for Arc<ArrayQueue<Slot>> {
    fn send(&mut self, numbers: Range<u64>) -> u64 {
        numbers
            .take_while(|&number| self.push(filled(number)).is_ok())
            .count() as u64
    }
}

impl Receiver for Arc<ArrayQueue<Slot>> {
    fn receive(&mut self, checksum: &mut u64) -> u64 {
        let slots = std::iter::from_fn(|| self.pop()).take(BATCH as usize);
        slots.map(|slot| *checksum += read(&slot)).count() as u64
    }
}

fn array_queue() -> (Arc<ArrayQueue<Slot>>, Arc<ArrayQueue<Slot>>) {
    let queue = Arc::new(ArrayQueue::new(SLOTS));
    (Arc::clone(&queue), queue)
}

fn rtrb_single() -> (Single<rtrb::Producer<Slot>>, Single<rtrb::Consumer<Slot>>) {
    let (producer, consumer) = rtrb::RingBuffer::new(SLOTS);
    (Single(producer), Single(consumer))
}

fn rtrb_chunks() -> (Chunks<rtrb::Producer<Slot>>, Chunks<rtrb::Consumer<Slot>>) {
    let (producer, consumer) = rtrb::RingBuffer::new(SLOTS);
    (Chunks(producer), Chunks(consumer))
}

fn batch_on_one_core(sender: &mut impl Sender, receiver: &mut impl Receiver) -> u64 {
    let mut checksum = 0;
    assert_eq!(sender.send(0..black_box(BATCH)), BATCH);
    assert_eq!(receiver.receive(&mut checksum), BATCH);
    checksum
}

/// Streams slots from a thread to this one; the time from the moment both are ready to the last slot's arrival.
fn stream(mut sender: impl Sender, mut receiver: impl Receiver, slots: u64) -> Duration {
    let ready = Arc::new(Barrier::new(2));
    let sending = {
        let ready = Arc::clone(&ready);
        thread::spawn(move || {
            ready.wait();
            let mut next = 0;
            while next < slots {
                match sender.send(next..slots.min(next + BATCH)) {
                    0 => thread::yield_now(),
                    sent => next += sent,
                }
            }
        })
    };
    ready.wait();
    let start = Instant::now();
    let (mut received, mut checksum) = (0, 0);
    while received < slots {
        match receiver.receive(&mut checksum) {
            0 => thread::yield_now(),
            some => received += some,
        }
    }
    let elapsed = start.elapsed();
    sending.join().expect("the sender runs to its end");
    assert_eq!(checksum, checksum_of(0..slots));
    elapsed
}

fn same_core(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("same_core");
    group.throughput(Throughput::Elements(BATCH));
    macro_rules! contender {
        ($name:literal, $queue:expr) => {
            let (mut sender, mut receiver) = $queue;
            group.bench_function($name, |bencher| {
                bencher.iter(|| batch_on_one_core(&mut sender, &mut receiver));
            });
        };
    }
    contender!("cring", cring::ring::<Slot>(SLOTS));
    contender!("rtrb", rtrb_single());
    contender!("rtrb_chunks", rtrb_chunks());
    contender!("array_queue", array_queue());
    group.finish();
}

fn cross_core(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cross_core");
    group.throughput(Throughput::Elements(STREAM));
    macro_rules! contender {
        ($name:literal, $queue:expr) => {
            group.bench_function($name, |bencher| {
                bencher.iter_custom(|iterations| {
                    let (sender, receiver) = $queue;
                    stream(sender, receiver, iterations * STREAM)
                });
            });
        };
    }
    contender!("cring", cring::ring::<Slot>(SLOTS));
    contender!("rtrb", rtrb_single());
    contender!("rtrb_chunks", rtrb_chunks());
    contender!("array_queue", array_queue());
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(40);
    targets = same_core, cross_core
}
criterion_main!(benches);
