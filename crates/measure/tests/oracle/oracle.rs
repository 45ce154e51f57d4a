//! The definitions, over the whole list.

use measure::{ACK, SYN};

/// A packet that passes here, with numbers from 0 that do not wrap.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub from: usize,
    pub seq: u64,
    pub ack: u64,
    /// Numbers that it takes.
    pub length: u64,
    pub payload: u64,
    pub flags: u8,
    pub time_us: i64,
}

/// What is expected of a direction.
#[derive(Debug, Default)]
pub struct Side {
    pub is_seen: bool,
    pub packets: usize,
    pub round_trips_us: Vec<i64>,
    /// Segments that begin below the highest number.
    pub again: u64,
    pub duplicates: u64,
    pub gap_us: i64,
}

impl Side {
    /// RFC 6298 §2.2 and §2.3, alpha = 1/8.
    pub fn smoothed_us(&self) -> f64 {
        let mut samples = self.round_trips_us.iter().map(|&us| us as f64);
        let first = samples.next().unwrap_or(0.0);
        samples.fold(first, |smoothed, sample| smoothed + (sample - smoothed) / 8.0)
    }
}

/// What is expected of a connection.
#[derive(Debug, Default)]
pub struct Expected {
    pub sides: [Side; 2],
    pub server_handshake_us: Option<u32>,
    pub client_handshake_us: Option<u32>,
    pub response_us: Option<u32>,
}

impl Expected {
    pub fn of(events: &[Event]) -> Expected {
        let mut expected = Expected {
            server_handshake_us: None,
            client_handshake_us: None,
            response_us: response_us(events),
            sides: std::array::from_fn(|from| side(events, from)),
        };
        let first = |from, wanted: &dyn Fn(u8) -> bool| {
            events.iter().find(|it| it.from == from && wanted(it.flags)).map(|it| it.time_us)
        };
        let syn = first(0, &|flags| flags & SYN != 0);
        let answer = first(1, &|flags| flags & SYN != 0);
        let ack = first(0, &|flags| flags & (SYN | ACK) == ACK);
        if let (Some(syn), Some(answer)) = (syn, answer) {
            expected.server_handshake_us = Some((answer - syn) as u32);
            expected.client_handshake_us = ack.map(|ack| (ack - answer) as u32);
        }
        expected
    }
}

/// From the first payload of side 0 to the first new payload of side 1 behind it.
fn response_us(events: &[Event]) -> Option<u32> {
    let is_new = |at: usize| {
        let event = &events[at];
        let before = events[..at].iter().filter(|it| it.from == event.from);
        event.payload > 0
            && before.map(|it| it.seq + it.length).max().is_none_or(|top| event.seq >= top)
    };
    let request = (0..events.len()).find(|&at| events[at].from == 0 && is_new(at))?;
    let response = (request..events.len()).find(|&at| events[at].from == 1 && is_new(at))?;
    Some((events[response].time_us - events[request].time_us) as u32)
}

fn side(events: &[Event], from: usize) -> Side {
    let own: Vec<&Event> = events.iter().filter(|it| it.from == from).collect();
    let gaps = own.windows(2).map(|pair| pair[1].time_us - pair[0].time_us);
    Side {
        is_seen: !own.is_empty(),
        packets: own.len(),
        gap_us: gaps.max().unwrap_or(0),
        again: own.iter().enumerate().filter(|(at, it)| is_again(&own[..*at], it)).count() as u64,
        duplicates: duplicates(events, from),
        round_trips_us: round_trips(events, from),
    }
}

/// The highest number of these packets.
fn top(sent: &[&Event]) -> Option<u64> {
    sent.iter().map(|it| it.seq + it.length).max()
}

/// Whether the first number was sent before. A byte just below the highest number may be a
/// keep-alive or a probe of a window (RFC 9293 §3.8.4 and §3.8.6.1), and with more behind it, new.
fn is_again(before: &[&Event], event: &Event) -> bool {
    top(before).is_some_and(|top| {
        let is_probe = event.seq + 1 == top && event.payload > 0;
        event.length > 0 && event.seq < top && !is_probe
    })
}

/// RFC 5681 §2: no payload, the number and window of the one before, and data on its way. A
/// keep-alive, which is below the highest number, is none, and the window of a SYN has another
/// scale.
fn duplicates(events: &[Event], from: usize) -> u64 {
    let mut count = 0;
    for (at, event) in events.iter().enumerate().filter(|(_, it)| it.from == from) {
        let before: Vec<&Event> = events[..at].iter().collect();
        let own: Vec<&Event> = before.iter().copied().filter(|it| it.from == from).collect();
        let other: Vec<&Event> = before.iter().copied().filter(|it| it.from != from).collect();
        let highest = own.iter().filter(|it| it.flags & ACK != 0).map(|it| it.ack).max();
        let is_duplicate = event.length == 0
            && highest == Some(event.ack)
            && own.last().is_some_and(|it| it.flags & SYN == 0)
            && top(&own).is_some_and(|top| event.seq >= top)
            && top(&other).is_some_and(|top| top > event.ack);
        count += u64::from(is_duplicate);
    }
    count
}

/// One round trip at a time (RFC 6298 §3): from new payload, while nothing waits for its
/// acknowledgement, to the packet that acknowledges it, unless meanwhile something was sent again
/// or is missing here.
fn round_trips(events: &[Event], from: usize) -> Vec<i64> {
    let mut round_trips = Vec::new();
    // The number awaited, since when; `None` where it counts for nothing.
    let mut on_its_way: Option<(u64, Option<i64>)> = None;
    let mut acked = None;
    for (at, event) in events.iter().enumerate() {
        let own: Vec<&Event> = events[..at].iter().filter(|it| it.from == from).collect();
        if event.from == from {
            let end = event.seq + event.length;
            // Before the other side has said anything, all before the first packet is done with.
            let done = acked.unwrap_or(own.first().map_or(event.seq, |it| it.seq));
            let highest = top(&own);
            let is_next = highest.is_none_or(|top| top == event.seq);
            let is_keep_alive = highest.is_some_and(|top| event.seq + 1 == top)
                && event.payload <= 1
                && event.length == event.payload;
            let is_late = event.length == 0 && highest.is_none_or(|top| event.seq <= top);
            if is_late || is_keep_alive {
                continue;
            }
            if !is_next {
                let top = end.max(highest.unwrap_or(0));
                if top > done {
                    on_its_way = Some((top, None));
                }
            } else if on_its_way.is_none() && event.payload > 0 {
                on_its_way = Some((end, Some(event.time_us)));
            }
        } else if event.flags & ACK != 0 {
            acked = acked.max(Some(event.ack));
            if let Some((number, since)) = on_its_way
                && event.ack >= number
            {
                round_trips.extend(since.map(|since| event.time_us - since));
                on_its_way = None;
            }
        }
    }
    round_trips
}
