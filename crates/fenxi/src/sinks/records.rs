//! Records as JSON Lines: the form that `docs/records.schema.json` describes.

mod control;
mod lines;
mod live;
mod output;
pub mod stream;
mod topic;

use std::time::Duration;

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use config::checked::{DEFAULT_TASK, Task};
use console::protocol::Measured;
use dataplane::tasks::TaskNames;
use flowmgr::record::{DecidedBy, Decision, FlowName, FlowRecord, LabelRecord, Record};
use flowmgr::wire::{ICMP, ICMPV6};
use flowmgr::{Behaviour, TaskId};
use jiff::Timestamp;
use serde::Serialize;
use sha1::{Digest, Sha1};

use crate::measured::measured;
use crate::names::Names as HostNames;
use crate::rules::number_by_order;
use crate::sinks::Interfaces;
use crate::sinks::hosts::HostRecord;

pub use control::{Records, start_replay};
pub use lines::Lines;
pub use topic::{Kafka, Topic, TopicCounts};

/// A record is written at latest so long after it was taken from the queue, for those who follow
/// the file, and because a program that is killed loses what it still had.
const WRITE_WITHIN: Duration = Duration::from_millis(250);

/// Bytes that are worth a write by themselves.
const WRITE_AT: usize = 64 * 1024;

/// Version of the records' form; it changes when a field changes its meaning or
/// goes away.
const SCHEMA_VERSION: u32 = 1;

/// What records call things by name: the tasks, in the order of the configuration.
#[derive(Debug, Clone, Default)]
pub struct Names {
    tasks: Vec<OfTask>,
    /// The task whose labels name hosts.
    hosts: TaskId,
    interfaces: Interfaces,
    /// What hosts are called.
    of_hosts: HostNames,
}

/// What records call a task and its classes.
#[derive(Debug, Clone, Default)]
struct OfTask {
    /// Names of the classes, by their numbers.
    classes: Arc<[String]>,
    /// Name of the task; `None` where no `[[task]]` is configured, so that there is only one and
    /// records need not say it.
    name: Option<String>,
    /// Its labels are left out of records.
    is_left_out: bool,
}

impl Names {
    pub fn new(
        names: &[TaskNames],
        tasks: &[Task],
        hosts: Option<TaskId>,
        interfaces: Interfaces,
    ) -> Names {
        let all = names.iter().enumerate().map(|(number, task)| OfTask {
            classes: task.classes.clone(),
            name: (&*task.name != DEFAULT_TASK).then(|| task.name.to_string()),
            is_left_out: tasks.get(number).is_some_and(|task| !task.records),
        });
        let of_hosts = HostNames::default();
        Names { tasks: all.collect(), hosts: hosts.unwrap_or_default(), interfaces, of_hosts }
    }

    /// These, with what hosts are called.
    pub fn with_hosts(self, of_hosts: HostNames) -> Names {
        Names { of_hosts, ..self }
    }

    fn task(&self, task: TaskId) -> Option<&OfTask> {
        self.tasks.get(task.index())
    }

    /// Whether a record has a line: a label of a task that is left out has none.
    pub fn has_line(&self, record: &Record) -> bool {
        match record {
            Record::Label(label) => self.task(label.task).is_some_and(|task| !task.is_left_out),
            Record::Flow(_) => true,
            Record::Behaviour(_) | Record::Sample(_) => false,
        }
    }
}

impl OfTask {
    fn label(&self, class: u16) -> Option<&str> {
        self.classes.get(usize::from(class)).map(String::as_str)
    }
}

/// Who the flow is: the fields that both records begin with.
#[derive(Serialize)]
struct Flow {
    schema_version: u32,
    flow_id: u64,
    community_id: String,
    src: IpAddr,
    dst: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst_name: Option<String>,
    src_port: u16,
    dst_port: u16,
    proto: u8,
    first: String,
}

#[derive(Default, Serialize)]
struct Labelled<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    label: Option<&'a str>,
    confidence: Option<f64>,
    decided_by: Option<&'static str>,
    depth: Option<u8>,
    model_generation: Option<u16>,
    time_to_label_us: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    true_label: Option<&'a str>,
    /// Left out if false.
    #[serde(skip_serializing_if = "Option::is_none")]
    contradicts: Option<bool>,
}

/// A line of the file.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Label {
        #[serde(flatten)]
        flow: Flow,
        time: String,
        #[serde(flatten)]
        labelled: Labelled<'a>,
    },
    Flow {
        #[serde(flatten)]
        flow: Flow,
        last: String,
        r#final: bool,
        midstream: bool,
        one_way: bool,
        packets_fwd: u64,
        packets_rev: u64,
        bytes_fwd: u64,
        bytes_rev: u64,
        tcp_flags_fwd: u8,
        tcp_flags_rev: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        icmp_type: Option<u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        icmp_code: Option<u8>,
        dscp_fwd: u8,
        dscp_rev: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        dscp_set: Option<u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        in_interface: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        out_interface: Option<&'a str>,
        end_reason: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        behaviour: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        measured: Option<Measured>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rule: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rule_name: Option<&'a str>,
        #[serde(flatten)]
        labelled: Labelled<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        labels: Option<Vec<Labelled<'a>>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        series: Option<&'a [i32]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        series_unit: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        series_us: Option<&'a [i64]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        series_payload: Option<&'a [u16]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        series_inter_arrival_us: Option<&'a [u32]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        series_tcp_flags: Option<&'a [u16]>,
    },
    Host {
        schema_version: u32,
        address: IpAddr,
        time: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        task: Option<&'a str>,
        label: Option<&'a str>,
        confidence: f64,
        flows: usize,
        model_generation: u16,
    },
}

impl Line<'_> {
    /// Appends it as JSON.
    fn write(&self, to: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(&mut *to, self)?;
        to.push(b'\n');
        Ok(())
    }
}

fn label_line<'a>(record: &LabelRecord, names: &'a Names) -> Line<'a> {
    Line::Label {
        flow: flow(&record.flow, None, names),
        time: rfc3339(record.time_us),
        labelled: labelled(Some(&record.decision), names.task(record.task)),
    }
}

fn flow_line<'a>(
    record: &'a FlowRecord,
    rule: Option<(u32, Option<&'a str>)>,
    names: &'a Names,
) -> Line<'a> {
    let series = record.series.as_deref();
    let (headers, interfaces) = (&record.headers, &names.interfaces);
    let interface = |at: Option<usize>| at.map(|at| interfaces.names[at].as_str());
    let [in_interface, out_interface] = interfaces.of(headers).map(interface);
    let ([tcp_flags_fwd, tcp_flags_rev], icmp) = (record.tcp_flags(), record.icmp());
    Line::Flow {
        flow: flow(&record.flow, icmp, names),
        last: rfc3339(record.last_us),
        r#final: record.is_final(),
        midstream: record.midstream,
        one_way: record.is_one_way(),
        packets_fwd: record.counts.packets[0],
        packets_rev: record.counts.packets[1],
        bytes_fwd: record.counts.bytes[0],
        bytes_rev: record.counts.bytes[1],
        tcp_flags_fwd,
        tcp_flags_rev,
        icmp_type: icmp.map(|[kind, _]| kind),
        icmp_code: icmp.map(|[_, code]| code),
        dscp_fwd: headers.tos[0] >> 2,
        dscp_rev: headers.tos[1] >> 2,
        dscp_set: interfaces.dscp_set(headers),
        in_interface,
        out_interface,
        end_reason: record.reason.name(),
        behaviour: behaviour_name(record.behaviour),
        measured: record.measured.as_ref().map(measured),
        rule: rule.map(|(order, _)| number_by_order(order)),
        rule_name: rule.and_then(|(_, name)| name),
        labelled: labelled(record.decisions[0].as_ref(), names.task(TaskId::FIRST)),
        labels: labels_of_others(&record.decisions, names),
        series: series.map(|series| series.lengths.as_slice()),
        series_unit: series.map(|series| series.unit.name()),
        series_us: series.map(|series| series.offsets_us.as_slice()),
        series_payload: series.and_then(|series| series.payloads.as_deref()),
        series_inter_arrival_us: series.and_then(|series| series.inter_arrivals_us.as_deref()),
        series_tcp_flags: series.and_then(|series| series.tcp_flags.as_deref()),
    }
}

/// The labels that other tasks than the first gave; `None` where there is one task.
fn labels_of_others<'a>(
    decisions: &[Option<Decision>],
    names: &'a Names,
) -> Option<Vec<Labelled<'a>>> {
    let given = decisions.iter().zip(&names.tasks).skip(1);
    let given = given.filter(|(decision, task)| decision.is_some() && !task.is_left_out);
    let labels = given.map(|(decision, task)| labelled(decision.as_ref(), Some(task)));
    (names.tasks.len() > 1).then(|| labels.collect())
}

fn host_line<'a>(host: &HostRecord, names: &'a Names) -> Line<'a> {
    Line::Host {
        schema_version: SCHEMA_VERSION,
        address: host.address,
        time: rfc3339(host.time_us),
        task: names.task(names.hosts).and_then(|task| task.name.as_deref()),
        label: names.task(names.hosts).and_then(|task| task.label(host.class)),
        confidence: rounded(host.confidence),
        flows: host.flows,
        model_generation: host.model,
    }
}

fn flow(name: &FlowName, icmp: Option<[u8; 2]>, names: &Names) -> Flow {
    let host = |address| names.of_hosts.name(address).map(|name| name.to_string());
    Flow {
        schema_version: SCHEMA_VERSION,
        flow_id: name.flow_id,
        community_id: community_id(name, icmp),
        src: name.source.0,
        dst: name.destination.0,
        src_name: host(name.source.0),
        dst_name: host(name.destination.0),
        src_port: name.source.1,
        dst_port: name.destination.1,
        proto: name.protocol,
        first: rfc3339(name.first_us),
    }
}

fn labelled<'a>(decision: Option<&Decision>, names: Option<&'a OfTask>) -> Labelled<'a> {
    let Some(names) = names else {
        return Labelled::default();
    };
    let task = names.name.as_deref();
    let Some(decision) = decision.filter(|_| !names.is_left_out) else {
        return Labelled { task, ..Labelled::default() };
    };
    let confidence = f64::from(decision.confidence) / f64::from(u16::MAX);
    let is_answer = !matches!(decision.decided_by, DecidedBy::Port | DecidedBy::Rule);
    Labelled {
        task,
        label: names.label(decision.class),
        confidence: Some(rounded(confidence)),
        decided_by: Some(decision.decided_by.name()),
        depth: (is_answer || decision.is_ports_first()).then_some(decision.depth),
        model_generation: is_answer.then_some(decision.model),
        time_to_label_us: decision.time_to_label_us,
        true_label: decision.truth.and_then(|band| names.label(band)),
        contradicts: decision.contradicts.map(|_| true),
    }
}

pub fn behaviour_name(behaviour: Behaviour) -> Option<&'static str> {
    (behaviour != Behaviour::None).then(|| behaviour.name())
}

/// To four decimals.
pub fn rounded(confidence: f64) -> f64 {
    (confidence * 1e4).round() / 1e4
}

/// Microseconds since the epoch as RFC 3339 with six decimals. Times that it can
/// not hold, which only a damaged capture has, become the nearest that it can.
pub fn rfc3339(time_us: i64) -> String {
    let first_us = -62_167_219_200_000_000; // 0000-01-01
    let time = Timestamp::from_microsecond(time_us.max(first_us)).unwrap_or(Timestamp::MAX);
    format!("{time:.6}")
}

/// Community ID version 1 with seed 0 (the specification by Corelight): the same
/// for both directions, and in every tool that knows it. `icmp`: type and code.
fn community_id(name: &FlowName, icmp: Option<[u8; 2]>) -> String {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut ends = [name.source, name.destination].map(|(address, port)| (octets(address), port));
    let answer = icmp.and_then(|[kind, _]| answer_to(name.protocol, kind));
    if let Some([kind, code]) = icmp {
        (ends[0].1, ends[1].1) = (kind.into(), answer.unwrap_or(code).into());
    }
    // What has no answer has one direction.
    if icmp.is_none() || answer.is_some() {
        ends.sort();
    }
    let [(low, low_port), (high, high_port)] = ends;
    let mut hash = Sha1::new();
    hash.update([0, 0]);
    hash.update(low);
    hash.update(high);
    hash.update([name.protocol, 0]);
    hash.update(low_port.to_be_bytes());
    hash.update(high_port.to_be_bytes());
    format!("1:{}", STANDARD.encode(hash.finalize()))
}

/// The type of ICMP that answers this one.
fn answer_to(protocol: u8, kind: u8) -> Option<u8> {
    Some(match (protocol, kind) {
        (ICMP, 0) => 8,
        (ICMP, 8) => 0,
        (ICMP, 9 | 13 | 15 | 17) | (ICMPV6, 128) => kind + 1,
        (ICMP, 10 | 14 | 16 | 18) | (ICMPV6, 129) => kind - 1,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowmgr::Counts;
    use flowmgr::record::EndReason;

    fn write_line(record: &Record, names: &Names, line: &mut Vec<u8>) {
        let mut lines = Lines::new(names.clone(), None);
        lines.push(&record.clone().into()).unwrap();
        line.extend(&lines.bytes);
    }

    fn name() -> FlowName {
        FlowName {
            flow_id: 7,
            protocol: 6,
            source: ("192.168.2.100".parse().unwrap(), 41772),
            destination: ("10.0.0.1".parse().unwrap(), 443),
            first_us: 1_500_000_000_000_001,
        }
    }

    #[test]
    fn community_ids_are_those_of_the_specification() {
        // A pair from the specification's published test vectors.
        let name = FlowName {
            source: ("128.232.110.120".parse().unwrap(), 34855),
            destination: ("66.35.250.204".parse().unwrap(), 80),
            ..name()
        };
        assert_eq!(community_id(&name, None), "1:LQU9qZlK+B5F3KDmev6m5PMibrg=");
        let back = |name: FlowName| FlowName {
            source: name.destination,
            destination: name.source,
            ..name
        };
        assert_eq!(community_id(&back(name), None), community_id(&name, None));
        let icmp = |protocol, source: &str, destination: &str| {
            let end = |address: &str| (address.parse().unwrap(), 0);
            FlowName { protocol, source: end(source), destination: end(destination), ..name }
        };
        let ping = icmp(ICMP, "192.168.0.89", "192.168.0.1");
        assert_eq!(community_id(&ping, Some([8, 0])), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk=");
        assert_eq!(community_id(&back(ping), Some([0, 0])), community_id(&ping, Some([8, 0])));
        let ping = icmp(ICMPV6, "2001:db8:a::30", "2001:db8:b::80");
        assert_eq!(community_id(&ping, Some([128, 0])), "1:/YTIceDDb3uXhPUdLXYQzwrlyp8=");
        assert_eq!(community_id(&back(ping), Some([129, 0])), community_id(&ping, Some([128, 0])));
        let error = icmp(ICMP, "198.51.100.87", "192.0.2.20");
        assert_eq!(community_id(&error, Some([3, 3])), "1:NtWeUbn9p0Imgb/+CVxTic5g4Vc=");
    }

    #[test]
    fn times_are_rfc_3339_with_six_decimals_whatever_they_are() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(1_500_000_000_000_001), "2017-07-14T02:40:00.000001Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999999Z");
        assert!(rfc3339(i64::MAX).starts_with("9999-12-30T"));
        assert!(rfc3339(i64::MIN).starts_with("0000-01-01T"));
    }

    #[test]
    fn a_flow_without_a_label_says_null() {
        let record = Record::Flow(FlowRecord {
            flow: name(),
            last_us: 1_500_000_000_000_002,
            midstream: true,
            counts: Counts { packets: [3, 0], bytes: [120, 0] },
            reason: EndReason::Active,
            is_half_open: false,
            decisions: [None; cring::TASKS_MAX],
            series: None,
            rule: None,
            behaviour: flowmgr::Behaviour::None,
            headers: Default::default(),
            measured: None,
        });
        let mut line = Vec::new();
        write_line(&record, &Names::default(), &mut line);
        let json: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(json["type"], "flow");
        assert_eq!(json["label"], serde_json::Value::Null);
        assert_eq!((&json["final"], &json["one_way"]), (&false.into(), &true.into()));
        assert!(json.get("series").is_none() && json.get("task").is_none());
        assert_eq!(line.last(), Some(&b'\n'));
    }

    fn of_task(name: &str, classes: [&str; 2]) -> OfTask {
        OfTask {
            classes: classes.map(str::to_owned).into(),
            name: Some(name.to_owned()),
            is_left_out: false,
        }
    }

    fn decision(class: u16) -> Decision {
        Decision {
            contradicts: None,
            class,
            confidence: 65_535,
            decided_by: DecidedBy::Model,
            depth: 3,
            model: 0,
            time_to_label_us: Some(0),
            truth: None,
        }
    }

    fn written(record: &Record, names: &Names) -> serde_json::Value {
        let mut line = Vec::new();
        write_line(record, names, &mut line);
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn each_task_names_its_own_classes() {
        let mut names = Names {
            tasks: vec![
                of_task("protocol", ["TLS", "DNS"]),
                of_task("device", ["camera", "plug"]),
                of_task("second", ["x", "y"]),
            ],
            hosts: TaskId::FIRST,
            ..Names::default()
        };
        let label = Record::Label(LabelRecord {
            flow: name(),
            task: TaskId(1),
            time_us: 1,
            decision: decision(1),
        });
        let json = written(&label, &names);
        assert_eq!((&json["task"], &json["label"]), (&"device".into(), &"plug".into()));
        let mut decisions = [None; cring::TASKS_MAX];
        (decisions[0], decisions[1]) = (Some(decision(0)), Some(decision(0)));
        let flow = Record::Flow(FlowRecord {
            flow: name(),
            last_us: 2,
            midstream: false,
            counts: Counts::default(),
            reason: EndReason::Fin,
            is_half_open: false,
            decisions,
            series: None,
            rule: None,
            behaviour: flowmgr::Behaviour::None,
            headers: Default::default(),
            measured: None,
        });
        let json = written(&flow, &names);
        assert_eq!((&json["task"], &json["label"]), (&"protocol".into(), &"TLS".into()));
        let labels = json["labels"].as_array().unwrap();
        assert_eq!(labels.len(), 1, "of tasks that gave one");
        assert_eq!(
            (&labels[0]["task"], &labels[0]["label"], &labels[0]["depth"]),
            (&"device".into(), &"camera".into(), &3.into())
        );
        assert!(names.has_line(&label));
        names.tasks[1].is_left_out = true;
        assert!(!names.has_line(&label));
        assert_eq!(written(&flow, &names)["labels"], serde_json::json!([]));
        names.tasks[0].is_left_out = true;
        assert_eq!(written(&flow, &names)["label"], serde_json::Value::Null);
    }

    #[test]
    fn a_label_names_its_class_and_who_decided() {
        let record = Record::Label(LabelRecord {
            flow: name(),
            task: TaskId::FIRST,
            time_us: 1,
            decision: Decision {
                contradicts: None,
                class: 1,
                confidence: 65_535,
                decided_by: DecidedBy::Cache,
                depth: 10,
                model: 3,
                time_to_label_us: Some(12),
                truth: None,
            },
        });
        let mut line = Vec::new();
        let tasks = vec![of_task("protocol", ["TLS", "DNS"])];
        let names = Names { tasks, ..Names::default() };
        write_line(&record, &names, &mut line);
        let json: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(
            (&json["task"], &json["label"], &json["decided_by"]),
            (&"protocol".into(), &"DNS".into(), &"cache".into())
        );
        assert_eq!((&json["confidence"], &json["time_to_label_us"]), (&1.0.into(), &12.into()));
    }
}
