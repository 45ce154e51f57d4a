//! A random process of flows: which flow sends when.
//!
//! Flows begin as a Poisson process. Each copies a template of the capture, drawn with equal
//! chances, and spreads its packets over the template's duration, again as a Poisson process. In
//! the long run the rates of flows and packets are those asked for. The seed is fixed, so every
//! run is the same.

use super::templates::{Drawn, Templates};
use crate::rng::Rng;

/// Longest duration of a flow; longer templates are compressed to it.
const DURATION_MAX_S: f64 = 60.0;
/// Shortest duration of a flow; shorter templates are stretched to it.
const DURATION_MIN_S: f64 = 0.001;

/// A flow that still sends.
struct Sender {
    template: u32,
    copy: u32,
    sent: u32,
    /// Packets per second.
    rate: f64,
    next_s: f64,
    end_s: f64,
}

/// A flow before the time that is measured.
pub struct Past {
    pub last_s: f64,
    pub template: u32,
    pub copy: u32,
    pub sent: u32,
    pub has_ended: bool,
}

pub struct Senders {
    rng: Rng,
    active: Vec<Sender>,
    flows_per_s: f64,
    now_s: f64,
    next_flow_s: f64,
    copies: u32,
}

impl Senders {
    /// The process from time 0. `past` gets the flows whose last packet was after -`silence_s`.
    pub fn new(
        templates: &Templates,
        flows_per_s: f64,
        silence_s: f64,
        past: &mut Vec<Past>,
    ) -> Senders {
        let from_s = -(DURATION_MAX_S + silence_s);
        let mut senders = Senders {
            rng: Rng::new(1),
            active: Vec::new(),
            flows_per_s,
            now_s: 0.0,
            next_flow_s: from_s,
            copies: 0,
        };
        while senders.next_flow_s < 0.0 {
            let mut sender = senders.begin(templates);
            let begun_s = sender.next_s;
            let until_s = sender.end_s.min(0.0);
            let sent = 1.0 + sender.rate * (until_s - begun_s);
            sender.sent = sent.round() as u32;
            let has_ended = sender.end_s < 0.0;
            let last_s = match has_ended {
                true => until_s,
                false => begun_s.max(-senders.rng.gap(sender.rate)),
            };
            if last_s > -silence_s {
                past.push(Past {
                    last_s,
                    template: sender.template,
                    copy: sender.copy,
                    sent: sender.sent,
                    has_ended,
                });
            }
            sender.next_s = senders.rng.gap(sender.rate);
            if sender.next_s < sender.end_s {
                senders.active.push(sender);
            }
        }
        past.sort_by(|one, other| one.last_s.total_cmp(&other.last_s));
        senders
    }

    /// The next flow of the process, before its first packet.
    fn begin(&mut self, templates: &Templates) -> Sender {
        let template = self.rng.below(templates.flows.len() as u32);
        let flow = &templates.flows[template as usize];
        let duration_s = flow.duration_s.clamp(DURATION_MIN_S, DURATION_MAX_S);
        let begin_s = self.next_flow_s;
        self.next_flow_s += self.rng.gap(self.flows_per_s);
        self.copies += 1;
        Sender {
            template,
            // An odd factor: a permutation that changes all bytes.
            copy: self.copies.wrapping_mul(0x9e37_79b1),
            sent: 0,
            rate: (flow.packets - 1.0) / duration_s,
            next_s: begin_s,
            end_s: begin_s + duration_s,
        }
    }

    /// The packets of the next `seconds` in order of time, with their times, s.
    pub fn window(&mut self, templates: &Templates, seconds: f64) -> Vec<(f64, Drawn)> {
        let until_s = self.now_s + seconds;
        while self.next_flow_s < until_s {
            let sender = self.begin(templates);
            self.active.push(sender);
        }
        let mut packets = Vec::new();
        let rng = &mut self.rng;
        self.active.retain_mut(|sender| {
            while sender.next_s < until_s {
                let at_s = sender.next_s;
                sender.next_s += rng.gap(sender.rate);
                let packet = Drawn {
                    template: sender.template,
                    copy: sender.copy,
                    number: sender.sent,
                    is_last: sender.next_s >= sender.end_s,
                };
                packets.push((at_s, packet));
                sender.sent += 1;
                if packet.is_last {
                    return false;
                }
            }
            true
        });
        packets.sort_by(|one, other| one.0.total_cmp(&other.0));
        self.now_s = until_s;
        packets
    }
}
