//! Lines on their way to a file: whole ones, in order, and how many they are.

use std::io;
use std::time::Instant;

use dataplane::rules::KnownRule;
use flowmgr::record::Record;

use super::{Names, flow_line, host_line, label_line};
use super::{WRITE_AT, WRITE_WITHIN};
use crate::sinks::SharedHosts;
use crate::sinks::queue::Queued;

pub struct Lines {
    names: Names,
    /// Where hosts are named: each record counts for its host.
    hosts: Option<SharedHosts>,
    pub bytes: Vec<u8>,
    pub count: u64,
    /// Written since somebody last asked.
    written: u64,
    /// When the oldest came; `None`: there is none.
    since: Option<Instant>,
}

impl Lines {
    pub fn new(names: Names, hosts: Option<SharedHosts>) -> Lines {
        Lines {
            names,
            hosts,
            bytes: Vec::with_capacity(2 * WRITE_AT),
            count: 0,
            written: 0,
            since: None,
        }
    }

    /// Appends a record, unless it is a label of a task that records leave out, and the record of
    /// its host if the record names it.
    pub fn push(&mut self, queued: &Queued) -> io::Result<()> {
        let Queued { record, rule } = queued;
        let host = self.hosts.as_ref().and_then(|hosts| hosts.take(record));
        let (before, names) = (self.bytes.len(), &self.names);
        let has_line = names.has_line(record);
        let rule_name = rule.as_ref().and_then(KnownRule::name);
        let rule = rule.as_ref().map(|rule| (rule.order, rule_name.as_deref()));
        let line = match record {
            Record::Label(label) if has_line => Some(label_line(label, names)),
            Record::Flow(flow) => Some(flow_line(flow, rule, names)),
            _ => None,
        };
        let host_line = host.as_ref().map(|host| host_line(host, names));
        let mut all = line.into_iter().chain(host_line);
        let written = all.try_for_each(|line| line.write(&mut self.bytes));
        if let Err(error) = written {
            self.bytes.truncate(before);
            return Err(error.into());
        }
        let lines = u64::from(has_line) + u64::from(host.is_some());
        self.count += lines;
        if lines > 0 {
            self.since.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    /// Leaves out a record that nobody reads; its host has it all the same.
    pub fn leave_out(&self, record: &Record) {
        if let Some(hosts) = &self.hosts {
            hosts.take(record);
        }
    }

    /// Removes the last `bytes` bytes again, which are `lines` whole lines.
    pub fn take_back(&mut self, bytes: usize, lines: u64) {
        self.bytes.truncate(self.bytes.len() - bytes);
        self.count -= lines;
        if self.bytes.is_empty() {
            self.since = None;
        }
    }

    pub fn is_due(&self) -> bool {
        let is_old = self.since.is_some_and(|since| since.elapsed() >= WRITE_WITHIN);
        is_old || self.bytes.len() >= WRITE_AT
    }

    /// The first `bytes` bytes have been written, and so have the lines that end in them.
    pub fn remove(&mut self, bytes: usize) {
        let gone = self.bytes.drain(..bytes);
        let lines = gone.filter(|byte| *byte == b'\n').count() as u64;
        self.count -= lines;
        self.written += lines;
        if self.bytes.is_empty() {
            self.since = None;
        }
    }

    /// Lines written since this was last asked.
    pub fn take_written(&mut self) -> u64 {
        std::mem::take(&mut self.written)
    }
}

#[cfg(test)]
mod tests {
    use flowmgr::Counts;
    use flowmgr::record::{EndReason, FlowName, FlowRecord};

    use super::*;

    fn record() -> Queued {
        Queued::from(Record::Flow(FlowRecord {
            flow: FlowName {
                flow_id: 0,
                protocol: 6,
                source: ("192.0.2.1".parse().unwrap(), 1),
                destination: ("192.0.2.2".parse().unwrap(), 2),
                first_us: 0,
            },
            last_us: 0,
            midstream: false,
            is_half_open: false,
            counts: Counts::default(),
            reason: EndReason::Idle,
            decisions: [None; cring::TASKS_MAX],
            series: None,
            rule: None,
            behaviour: flowmgr::Behaviour::None,
            headers: Default::default(),
            measured: None,
        }))
    }

    /// A single line does not wait for more to come; so a killed program loses only the last
    /// moments' records.
    #[test]
    fn lines_are_due_when_they_are_many_or_the_oldest_is_old() {
        let mut lines = Lines::new(Names::default(), None);
        assert!(!lines.is_due());
        lines.push(&record()).unwrap();
        let pushed = lines.since.expect("a line is there");
        lines.since = Some(pushed + WRITE_WITHIN);
        assert!(!lines.is_due(), "not before its time");
        lines.since = pushed.checked_sub(WRITE_WITHIN);
        assert!(lines.is_due(), "old");
        lines.push(&record()).unwrap();
        assert!(lines.is_due(), "a newer line does not make the oldest young");
        lines.remove(lines.bytes.len());
        assert!(!lines.is_due(), "nothing is left");
        while lines.bytes.len() < WRITE_AT {
            lines.push(&record()).unwrap();
        }
        assert!(lines.is_due(), "many");
    }
}
