//! `--write`: the packets as they would leave.
//!
//! In a replay by packet time a label counts from a moment in packet time,
//! whenever it really comes. So the writer lags behind: a packet whose flow's
//! label is on its way, and all packets after it, are held until the label is
//! there. The packet path only waits when too much is held.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cring::{Label, Labels, TASKS_MAX, TaskWords};
use flowmgr::verdict::Verdict;
use flowmgr::{Action, Actions, Fate, Packet, TaskId, tag};
use packetio::{Burst, CaptureFormat, CaptureWriter, Frame, WriteError};
use policy::{Ask, RuleNumber};

use super::Egress;
use crate::Error;
use crate::opening::inline::FlowManager;
use crate::threads::rules::{self, ByMinute, RulesInForce};

/// Bytes of packets held at a time, at most, beyond one burst.
const HELD_BYTES_MAX: usize = 64 << 20;

/// A packet that waits for its label, or behind one that does.
struct Held {
    frame: Frame,
    bytes: Vec<u8>,
    fate: Fate,
    /// Its flow, where labels decide on the rule.
    ask: Option<Ask>,
}

/// The output.
pub struct TaggedWriter {
    output: PathBuf,
    writer: CaptureWriter<File>,
    labels: Arc<dyn Labels>,
    /// Where labels are: the first task's, and of others whose labels have actions or that
    /// rules ask for.
    tasks: Vec<(TaskId, TaskWords)>,
    actions: Actions,
    /// Tasks whose labels rules ask for: bit n for task n.
    in_rules: u8,
    /// Where there are such tasks.
    rules: Option<(RulesInForce, ByMinute)>,
    decisions: Vec<Option<RuleNumber>>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Buffers of packets that were written, for use again.
    spare: Vec<Vec<u8>>,
    written: u64,
}

impl TaggedWriter {
    /// Creates `output` for the packets that `manager` walks, with these rules in force: pcapng
    /// where its name says so, else pcap in nanoseconds. Where rules ask for labels, a burst has to
    /// be one packet: they are looked up by what is known at its end.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(
        output: &Path,
        manager: &FlowManager,
        rules: Option<&RulesInForce>,
    ) -> Result<TaggedWriter, Error> {
        let format = match output.extension() {
            Some(extension) if extension == "pcapng" => CaptureFormat::Pcapng,
            _ => CaptureFormat::Pcap { nanosecond: true },
        };
        let file = File::create(output).map_err(|error| {
            Error::cannot_create(format!("{}: cannot be created: {error}", output.display()))
        })?;
        let writer = CaptureWriter::create(format, file).map_err(|error| failure(output, error))?;
        let in_rules = rules.map_or(0, |rules| rules.policy.label_tasks());
        let in_use = 1 | manager.actions().other_tasks() | in_rules;
        let tasks = (0..8).filter(|task| in_use >> task & 1 != 0).map(TaskId);
        Ok(TaggedWriter {
            output: output.to_owned(),
            writer,
            labels: manager.labels(),
            tasks: tasks.map(|task| (task, manager.words(task))).collect(),
            actions: manager.actions().clone(),
            in_rules,
            rules: rules.filter(|_| in_rules != 0).map(|it| (it.clone(), ByMinute::new(it))),
            decisions: Vec::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            spare: Vec::new(),
            written: 0,
        })
    }

    /// Takes the next packet, and writes it unless something stands in its way.
    fn push(
        &mut self,
        frame: Frame,
        bytes: &[u8],
        fate: Fate,
        ask: Option<Ask>,
    ) -> Result<(), Error> {
        // As a forwarding run would, it leaves out what rules drop.
        let is_untouched = fate.label_of.is_none() && fate.by_rule().dscp.is_none();
        if self.held.is_empty() && is_untouched && fate.verdict != Verdict::Dropped {
            return self.write(&frame, bytes);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        self.held_bytes += copy.len();
        self.held.push_back(Held { frame, bytes: copy, fate, ask });
        Ok(())
    }

    /// What is done to a packet: as its rule says, and what that leaves out as the label says.
    /// Rules that ask for a label are looked up here, since it comes later than the walk.
    fn action(&mut self, held: &Held) -> Action {
        let mut action = held.fate.by_rule();
        let mut classes = [None; TASKS_MAX];
        // Of several labels with a DSCP the last task's counts.
        let mut of_labels = None;
        for (task, words) in &self.tasks {
            if let Label::Class { class, .. } = self.label(words, &held.fate) {
                classes[task.index()] = Some(class).filter(|_| self.in_rules >> task.0 & 1 != 0);
                of_labels = self.actions.of_class(*task, class).dscp.or(of_labels);
            }
        }
        if let (Some((rules, gates)), Some(mut ask)) = (&mut self.rules, held.ask)
            && classes != [None; TASKS_MAX]
        {
            ask.facts.classes = classes;
            let gates = gates.at(held.frame.time_us, rules.calendar.as_deref());
            rules.policy.decide(&[ask], gates, &mut self.decisions);
            let rule = self.decisions.first().copied().flatten();
            let action_of = |rule| rules::action(rules.policy.decision(rule));
            action = rule.map_or_else(Action::default, action_of);
        }
        action.dscp = action.dscp.or(of_labels);
        action
    }

    /// Whether a label that counts for the packet is on its way.
    fn is_waiting(&self, fate: &Fate) -> bool {
        self.tasks.iter().any(|(_, words)| self.label(words, fate) == Label::Pending)
    }

    /// The label of a task, as far as it counts for the packet.
    fn label(&self, words: &TaskWords, fate: &Fate) -> Label {
        let label = |flow| words.label_of(&*self.labels, flow, fate.depths);
        fate.label_of.map_or(Label::None, label)
    }

    fn write(&mut self, frame: &Frame, bytes: &[u8]) -> Result<(), Error> {
        let written = self.writer.write(frame, bytes);
        written.map_err(|error| failure(&self.output, error))?;
        self.written += 1;
        Ok(())
    }
}

impl Egress for TaggedWriter {
    fn send(
        &mut self,
        _port: usize,
        burst: &Burst<'_>,
        packets: &[Packet],
        fates: &[Fate],
        flows: &FlowManager,
    ) -> Result<(), Error> {
        for (i, (packet, fate)) in packets.iter().zip(fates).enumerate() {
            let frame = burst.frames()[i];
            let ask = match (&self.rules, fate.label_of) {
                (Some(_), Some(flow)) => {
                    Some(rules::ask(&flows.rule_question(flow, packet.time_us)))
                }
                _ => None,
            };
            self.push(frame, burst.bytes(i), *fate, ask)?;
        }
        Ok(())
    }

    /// Writes held packets up to the first whose label is on its way.
    fn advance(&mut self) -> Result<(), Error> {
        while let Some(mut held) = self.held.pop_front() {
            if self.is_waiting(&held.fate) {
                self.held.push_front(held);
                break;
            }
            let action = self.action(&held);
            if let Some(dscp) = action.dscp {
                tag::set_dscp(&mut held.bytes, held.fate.ip_at, dscp);
            }
            match action.drop {
                true => self.written += 1,
                false => self.write(&held.frame, &held.bytes)?,
            }
            self.held_bytes -= held.bytes.len();
            held.bytes.clear();
            self.spare.push(held.bytes);
        }
        Ok(())
    }

    fn done(&self) -> u64 {
        self.written
    }

    fn is_full(&self) -> bool {
        self.held_bytes > HELD_BYTES_MAX
    }

    /// Writes what is buffered. Nothing is held any more, since every label has come.
    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        self.advance()?;
        let TaggedWriter { output, writer, .. } = *self;
        let file = writer.finish().map_err(|error| failure(&output, error))?;
        file.sync_all().or_else(|error| match error.kind() {
            // A pipe or a device has nothing to sync.
            std::io::ErrorKind::InvalidInput => Ok(()),
            _ => Err(failure(&output, error.into())),
        })
    }
}

/// A pipe whose reader has gone is a failure too: the packets were wanted.
fn failure(output: &Path, error: WriteError) -> Error {
    let name = output.display();
    Error::io(match error {
        WriteError::Io(error) => format!("{name}: write failed: {error}"),
        error => format!("{name}: {error}"),
    })
}
