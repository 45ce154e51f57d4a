//! A flow manager as its thread holds it: if the run is recorded, each call of the manager is a step of the recording.

use std::ops::Deref;

use flowmgr::record::Record;
use flowmgr::{Counted, Fate, Manager, Packet, RuleAnswer, RulesChange, Settings};

use super::counts;
use super::event::{Counts, Event, Frame, Who, begin_burst, encode_answers, encode_counts};
use super::frame::Keeper;
use super::settings::FlowSettings;
use super::step::StepRecorder;
use super::tape::Recorder;

/// The manager. It can be read through `Deref`; all calls that change it go through the methods here. Without a recording
/// that costs a branch per burst.
pub struct Walker {
    manager: Manager,
    end: Option<Box<End>>,
}

struct End {
    steps: StepRecorder,
    keeper: Keeper,
}

impl Deref for Walker {
    type Target = Manager;

    fn deref(&self) -> &Manager {
        &self.manager
    }
}

impl Walker {
    /// `number` counts through all pipelines.
    pub fn new(manager: Manager, number: usize, recorder: Option<&Recorder>) -> Walker {
        let end = recorder.map(|recorder| End {
            steps: StepRecorder::new(recorder, Who::Flow(number as u32)),
            keeper: Keeper::default(),
        });
        Walker {
            manager,
            end: end.map(Box::new),
        }
    }

    /// [`Manager::burst`].
    #[inline]
    pub fn burst(
        &mut self,
        data: &mut [u8],
        packets: &[Packet],
        now_ns: u64,
        fates: &mut Vec<Fate>,
    ) {
        let Some(end) = &mut self.end else {
            return self.manager.burst(data, packets, now_ns, fates);
        };
        if end.steps.is_open() {
            // Before the walk, which may write into the packets.
            end.describe(self.manager.port(), data, packets, now_ns);
        }
        end.steps.step(&mut self.manager, of, |manager| {
            manager.burst(data, packets, now_ns, fates);
        });
    }

    /// [`Manager::count`] for each of these; puts the numbers of flows that are not known into `unknown`.
    pub fn count(&mut self, flows: &[Counted], unknown: &mut Vec<u32>) {
        let port = self.manager.port();
        let mut count = |manager: &mut Manager| {
            let numbered = flows.iter().zip(0..);
            unknown.extend(numbered.filter_map(|(flow, i)| (!manager.count(flow)).then_some(i)));
        };
        let Some(End { steps, .. }) = self.end.as_deref_mut() else {
            count(&mut self.manager);
            return;
        };
        steps.body.clear();
        let number = steps.number();
        encode_counts(&mut steps.body, number, port, flows);
        steps.step(&mut self.manager, of, count);
    }

    /// [`Manager::receive_from`]; each burst of a recording says where it came from.
    pub fn receive_from(&mut self, port: u8) {
        self.manager.receive_from(port);
    }

    /// [`Manager::pass`].
    pub fn pass(&mut self, time_us: i64) {
        let event = |manager| Event::Pass { manager, time_us };
        self.step(event, |manager| manager.pass(time_us));
    }

    /// Hands over records that are ready and returns the number of their flows: at most `most` where `done` is `u64::MAX`.
    /// `done` is that of [`Manager::settle`]. Only a replay passes another value: a recorded run keeps no packets.
    pub fn settle(
        &mut self,
        done: u64,
        most: usize,
        now_ns: u64,
        out: &mut dyn FnMut(Record),
    ) -> usize {
        if done != u64::MAX {
            self.manager.settle(done, now_ns, out);
            return 0;
        }
        // Nothing waits, so the call would change nothing: not worth an event each time.
        if self.manager.labels_awaited() == 0 && self.manager.is_settled() {
            return 0;
        }
        let event = |manager| Event::Settle {
            manager,
            now_ns,
            most: most as u64,
        };
        let mut settled = 0;
        self.step(event, |manager| {
            settled = manager.settle_some(most, now_ns, out);
        });
        settled
    }

    /// The same without a consumer: records are counted, not made.
    pub fn discard_records(&mut self, done: u64, now_ns: u64) -> usize {
        self.manager.discard_records(done, now_ns);
        0
    }

    /// Whether a burst of so many packets finds room, see [`Manager::has_room`].
    pub fn has_room(&mut self, packets: usize) -> bool {
        self.manager.has_room(packets)
    }

    /// [`Manager::configure`].
    pub fn configure(&mut self, settings: &mut Settings) {
        let Some(End { steps, .. }) = self.end.as_deref_mut() else {
            return self.manager.configure(settings);
        };
        let event = Event::Configure {
            manager: steps.number(),
            settings: FlowSettings(settings.clone()),
        };
        steps.body.clear();
        event.encode(&mut steps.body);
        steps.step(&mut self.manager, of, |manager| manager.configure(settings));
    }

    /// [`Manager::note_port`].
    pub fn note_port(&mut self, port: u8) {
        self.manager.note_port(port);
    }

    /// [`Manager::change_rules`].
    pub fn change_rules(&mut self, change: &mut RulesChange) {
        let RulesChange {
            has_bounds,
            has_behaviours,
            is_renumbered,
            ..
        } = *change;
        let event = |manager| Event::ChangeRules {
            manager,
            has_bounds,
            has_behaviours,
            is_renumbered,
        };
        self.step(event, |manager| manager.change_rules(change));
    }

    /// [`Manager::answer_rules`].
    #[inline]
    pub fn answer_rules(
        &mut self,
        answers: &[RuleAnswer],
        data: &mut [u8],
        packets: &[Packet],
        now_ns: u64,
        fates: &mut Vec<Fate>,
    ) {
        let Some(End { steps, .. }) = self.end.as_deref_mut() else {
            return self
                .manager
                .answer_rules(answers, data, packets, now_ns, fates);
        };
        steps.body.clear();
        let number = steps.number();
        encode_answers(&mut steps.body, number, now_ns, answers);
        steps.step(&mut self.manager, of, |manager| {
            manager.answer_rules(answers, data, packets, now_ns, fates);
        });
    }

    /// [`Manager::drain`].
    pub fn drain(&mut self) {
        self.step(|manager| Event::Drain { manager }, Manager::drain);
    }

    fn step(&mut self, event: impl FnOnce(u32) -> Event, act: impl FnOnce(&mut Manager)) {
        let Some(End { steps, .. }) = self.end.as_deref_mut() else {
            return act(&mut self.manager);
        };
        steps.body.clear();
        event(steps.number()).encode(&mut steps.body);
        steps.step(&mut self.manager, of, act);
    }
}

impl Drop for Walker {
    fn drop(&mut self) {
        if let Some(end) = &mut self.end {
            end.steps.leave(|classes| of(&self.manager, classes));
        }
    }
}

impl End {
    /// The burst's event, with the headers of its packets.
    fn describe(&mut self, port: u8, data: &[u8], packets: &[Packet], now_ns: u64) {
        let End { steps, keeper } = self;
        let manager = steps.number();
        steps.body.clear();
        begin_burst(&mut steps.body, manager, now_ns, port, packets.len());
        let mut before_us = 0;
        for packet in packets {
            let captured = &data[packet.at..packet.at + packet.captured as usize];
            let kept = keeper.kept(packet.link, packet.gso, captured);
            let frame = Frame {
                time_us: packet.time_us,
                captured: packet.captured,
                wire: packet.wire,
                link: packet.link,
                rss: packet.rss,
                gso: packet.gso.bits(),
                kept: Vec::new(),
            };
            frame.encode(kept, &mut before_us, &mut steps.body);
        }
    }
}

fn of(manager: &Manager, classes: &[String]) -> Counts {
    counts::of_flows(manager.counters(), classes)
}
