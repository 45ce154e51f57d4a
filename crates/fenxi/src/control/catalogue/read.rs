//! How the catalogue reads a view: a sample for each pipeline, thread, device or label.

use std::collections::BTreeMap;
use std::time::SystemTime;

use analytics::{DeviceCounters, DeviceProfile, DeviceState, FailureKind};
use cring::Counter;
use flowmgr::record::EndReason;
use flowmgr::{Behaviour, BehaviourCounters, DepthCounters, ExpiryLag, Score};
use hdrhistogram::Histogram;
use packetio::TxCounts;

use crate::control::collector::Watched;
use crate::control::view::{Balance, PipelineSums, TaskSums, View};
use crate::label_names::LabelNames;
use crate::metric::{Buckets, Sample, TIMES, US, Value, buckets, count, number, sample};
use dataplane::counters::{AnalyticsSnapshot, FlowSnapshot, PortCounters};
use dataplane::rules::{RuleTotals, RuleVolume};
use dataplane::state::RulesOp;

pub fn seconds_since_epoch(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Reasons of an end; an active timeout is none.
pub fn ends() -> impl Iterator<Item = EndReason> {
    let reasons = EndReason::ALL.into_iter();
    reasons.filter(|reason| *reason != EndReason::Active)
}

pub fn pipelines(
    view: &View<'_>,
    read: impl Fn(&PipelineSums, &str) -> Vec<Sample>,
) -> Vec<Sample> {
    let pipelines = view.pipelines.iter();
    pipelines.flat_map(|sums| read(sums, &sums.name)).collect()
}

pub fn sums(view: &View<'_>, read: impl Fn(&PipelineSums) -> u64) -> Vec<Sample> {
    pipelines(view, |sums, pipeline| vec![count(&[pipeline], read(sums))])
}

/// A count for each pipeline and value of one more label.
pub fn by_pipeline<const N: usize>(
    view: &View<'_>,
    read: impl Fn(&PipelineSums) -> [(&'static str, u64); N],
) -> Vec<Sample> {
    pipelines(view, |sums, pipeline| {
        read(sums).map(|(value, sum)| count(&[pipeline, value], sum)).into()
    })
}

/// Several samples of each task of each pipeline, with the values of the labels pipeline and task.
pub fn tasks(view: &View<'_>, read: impl Fn(&TaskSums, &[&str; 2]) -> Vec<Sample>) -> Vec<Sample> {
    pipelines(view, |sums, pipeline| {
        let tasks = sums.tasks.iter().zip(view.facts.names.iter());
        tasks.flat_map(|(task, names)| read(task, &[pipeline, &names.name])).collect()
    })
}

pub fn task_sums(view: &View<'_>, read: impl Fn(&TaskSums) -> u64) -> Vec<Sample> {
    tasks(view, |sums, labels| vec![count(labels, read(sums))])
}

/// Samples of each task of each pipeline, by one more label.
pub fn by<const N: usize>(
    view: &View<'_>,
    read: impl Fn(&TaskSums) -> [(&'static str, u64); N],
) -> Vec<Sample> {
    tasks(view, |sums, &[pipeline, task]| {
        read(sums).map(|(value, sum)| count(&[pipeline, task, value], sum)).into()
    })
}

/// Histograms of times of each task of each pipeline, by one more label.
pub fn times_by<const N: usize>(
    view: &View<'_>,
    read: impl Fn(&TaskSums) -> [(&'static str, &Histogram<u64>); N],
) -> Vec<Sample> {
    tasks(view, |sums, &[pipeline, task]| {
        let times = |(value, times)| sample(&[pipeline, task, value], buckets(&TIMES, US, times));
        read(sums).map(times).into()
    })
}

/// A count of each label of the first task; labels without a name of their own share one sample.
pub fn labels(view: &View<'_>, read: impl Fn(&PipelineSums, usize) -> u64) -> Vec<Sample> {
    pipelines(view, |sums, pipeline| {
        let counts = (0..sums.flows.counters.flows_labelled().len()).map(|at| read(sums, at));
        named(&view.facts.labels[0], &[pipeline], counts)
    })
}

pub fn behaviours(view: &View<'_>, read: impl Fn(&BehaviourCounters) -> u64) -> Vec<Sample> {
    pipelines(view, |sums, pipeline| {
        let counts = sums.flows.counters.behaviours.iter().zip(Behaviour::ALL);
        let sample = |(sums, it): (&_, Behaviour)| count(&[pipeline, it.name()], read(sums));
        counts.map(sample).collect()
    })
}

pub fn task_labels(view: &View<'_>, read: impl Fn(&DepthCounters) -> &[u64]) -> Vec<Sample> {
    pipelines(view, |sums, pipeline| {
        let names = view.facts.names.iter().zip(&view.facts.labels);
        let tasks = sums.tasks.iter().zip(names);
        let samples = tasks.flat_map(|(task, (of_task, labels))| {
            let counts = read(&task.flows).iter().copied();
            named(labels, &[pipeline, &of_task.name], counts)
        });
        samples.collect()
    })
}

/// Samples of each task of each pipeline whose labels are bands, with the values of the labels
/// pipeline and task, and the names of the classes.
pub fn scores(
    view: &View<'_>,
    read: impl Fn(&Score, &[&str; 2], &[String]) -> Vec<Sample>,
) -> Vec<Sample> {
    pipelines(view, |sums, pipeline| {
        let tasks = view.facts.names.iter().zip(&sums.flows.counters.scores);
        let with_bands = tasks.filter(|(names, _)| names.target.is_some());
        let samples = with_bands
            .flat_map(|(names, it)| read(&it.all, &[pipeline, &names.name], &names.classes));
        samples.collect()
    })
}

fn named(names: &LabelNames, labels: &[&str], counts: impl Iterator<Item = u64>) -> Vec<Sample> {
    let zero = |label: &String| count(&[labels, &[label.as_str()]].concat(), 0);
    let mut samples: Vec<Sample> = names.shown().iter().map(zero).collect();
    for (class, counted) in counts.enumerate() {
        if let Value::Count(sum) = &mut samples[names.place_of(class)].value {
            *sum += counted;
        }
    }
    samples
}

/// Name for all rules without counters of their own.
const OTHER: &str = "other";

/// Volumes of rules by name. A deleted rule and a later one with its name count together.
pub fn rule_volumes<'a>(view: &'a View<'_>) -> BTreeMap<&'a str, RuleVolume> {
    let rules = &view.run_state.rules;
    let mut totals = RuleTotals { numbering: rules.numbering, ..RuleTotals::default() };
    for pipeline in &view.pipelines {
        totals.by_rule.merge(&pipeline.flows.rules.by_rule);
    }
    // Records may have come since the picture of the tables was taken.
    totals.keep(&view.rules_in_tables);
    let counted = rules.counted.iter().map(String::as_str);
    let mut volumes = BTreeMap::new();
    for (name, volume) in [OTHER].into_iter().chain(counted).zip(&totals.by_rule) {
        let sum: &mut RuleVolume = volumes.entry(name).or_default();
        sum.merge(volume);
    }
    volumes
}

/// A count of each rule that has counters of its own, and of all others.
pub fn rules(view: &View<'_>, read: impl Fn(&RuleVolume) -> u64) -> Vec<Sample> {
    let volumes = rule_volumes(view).into_iter();
    volumes.map(|(name, volume)| count(&[name], read(&volume))).collect()
}

pub fn rules_updates(view: &View<'_>) -> Vec<Sample> {
    let updates = &view.run_state.rules_updates;
    let results = [("applied", updates.applied), ("refused", updates.refused)];
    let of_op = |op: RulesOp| {
        results.map(|(result, by_op)| count(&[op.name(), result], by_op[op as usize]))
    };
    RulesOp::ALL.into_iter().flat_map(of_op).collect()
}

/// The share of filters that models find; 1 without filters.
pub fn rules_coverage(view: &View<'_>) -> f64 {
    let rules = &view.run_state.rules;
    match rules.learned + rules.remainder {
        0 => 1.0,
        all => rules.learned as f64 / all as f64,
    }
}

/// Samples of each port and flow manager. `queue` is the flow manager's number over all pipelines.
pub fn queues(
    view: &View<'_>,
    read: impl Fn(&PortCounters, &[&str; 2]) -> Vec<Sample>,
) -> Vec<Sample> {
    let flows = view.collector.flows.iter().enumerate();
    let samples = flows.flat_map(|(number, watched)| {
        let queue = number.to_string();
        let ports = view.facts.ports.iter().zip(&watched.latest.ports);
        let samples = ports.flat_map(|(name, port)| read(port, &[name, &queue]));
        samples.collect::<Vec<_>>()
    });
    samples.collect()
}

pub fn ports(view: &View<'_>, read: impl Fn(&PortCounters) -> u64) -> Vec<Sample> {
    queues(view, |port, labels| vec![count(labels, read(port))])
}

/// Samples of the interface for copies, if there is one, by flow manager as [`queues`].
pub fn mirrored(
    view: &View<'_>,
    read: impl Fn(&TxCounts, &[&str; 2]) -> Vec<Sample>,
) -> Vec<Sample> {
    let config = &view.facts.config;
    let Some(name) = config.mirror().filter(|_| view.facts.is_live) else { return Vec::new() };
    let flows = view.collector.flows.iter().enumerate();
    let samples = flows
        .flat_map(|(number, watched)| read(&watched.latest.copied, &[name, &number.to_string()]));
    samples.collect()
}

/// Label of sums over all queues, pipelines or tasks.
const ALL: &str = "all";

/// Packets lost before they could be read, by place. Each counts once: a packet dropped by the card
/// or the kernel does not reach a ring.
pub fn drops(view: &View<'_>) -> Vec<Sample> {
    let mut samples = queues(view, |port, &[name, queue]| {
        vec![count(&[name, queue, "ring_full"], port.rx.dropped)]
    });
    for (i, name) in view.facts.ports.iter().enumerate() {
        let dropped = view.collector.dropped.get(i).copied().unwrap_or_default();
        let reasons = [
            ("nic_missed", dropped.nic_missed),
            ("no_buffer", dropped.no_buffer),
            ("kernel", dropped.kernel),
        ];
        samples.extend(reasons.map(|(reason, packets)| count(&[name, ALL, reason], packets)));
    }
    samples
}

/// Difference of each sum that should close.
pub fn balances(view: &View<'_>) -> Vec<Sample> {
    let mut samples =
        pipelines(view, |sums, pipeline| {
            // `series` is reported by task.
            let Balance { ports, packets, sent, series: _, flows } = sums.balance;
            let of = |of, missing: i64| number(&[pipeline, ALL, of], missing as f64);
            let mut samples = vec![of("ports", ports), of("packets", packets), of("sent", sent)];
            let tasks = sums.tasks.iter().zip(view.facts.names.iter());
            samples.extend(tasks.map(|(task, names)| {
                number(&[pipeline, &names.name, "series"], task.missing as f64)
            }));
            samples.push(of("flows", flows));
            samples
        });
    let sinks = view.collector.sinks.iter();
    let of_sinks = sinks.filter_map(|report| report.balance);
    samples.extend(of_sinks.map(|(of, missing)| number(&[ALL, ALL, of], missing as f64)));
    samples
}

pub fn lags(lag: &ExpiryLag) -> Value {
    let mut count = 0;
    let bounds = ExpiryLag::BOUNDS_S.iter().zip(lag.flows());
    let cumulative = bounds.map(|(&bound, flows)| {
        count += flows;
        (f64::from(bound), count)
    });
    Value::Buckets(Buckets {
        cumulative: cumulative.collect(),
        sum: lag.sum_s(),
        count: lag.flows().iter().sum(),
    })
}

/// One count of each flow manager, by its pipeline and name.
pub fn workers(view: &View<'_>, read: impl Fn(&FlowSnapshot) -> u64) -> Vec<Sample> {
    let flows = view.collector.flows.iter();
    let samples = flows.map(|watched| {
        let labels = [watched.thread.instance.to_string(), watched.thread.to_string()];
        count(&[&labels[0], &labels[1]], read(&watched.latest))
    });
    samples.collect()
}

struct Session<'a> {
    /// Values of the labels pipeline, task, device and session.
    labels: [String; 4],
    device: &'a DeviceCounters,
    state: DeviceState,
}

fn sessions<'a>(view: &'a View<'_>) -> impl Iterator<Item = Session<'a>> {
    let managers = view.collector.analytics.iter();
    managers.flat_map(|watched: &Watched<AnalyticsSnapshot>| {
        let tasks = watched.latest.tasks.iter().zip(view.facts.names.iter());
        let own = tasks.flat_map(|(task, names)| {
            let devices = task.devices().enumerate();
            devices.map(move |(i, (state, device))| (&names.name, i, state, device))
        });
        own.map(|(task, i, state, device)| Session {
            labels: [
                watched.thread.instance.to_string(),
                task.to_string(),
                device.requested.clone(),
                format!("{}.{i}", watched.thread.role.number()),
            ],
            device,
            state,
        })
    })
}

pub fn devices(
    view: &View<'_>,
    read: impl Fn(&DeviceCounters, DeviceState) -> Value,
) -> Vec<Sample> {
    let sample = |session: Session<'_>| Sample {
        labels: session.labels.into(),
        value: read(session.device, session.state),
    };
    sessions(view).map(sample).collect()
}

pub fn profiles(view: &View<'_>, read: impl Fn(&DeviceProfile) -> Value) -> Vec<Sample> {
    let found =
        with_profile(view).map(|(sample, profile)| Sample { value: read(&profile), ..sample });
    found.collect()
}

/// T₀ and T₁ of each device that has a profile.
pub fn parts(view: &View<'_>) -> Vec<Sample> {
    let parts = with_profile(view).flat_map(|(sample, profile)| {
        let line = profile.expected;
        [("fixed", line.t0_us), ("per_series", line.t1_us)].map(|(part, us)| {
            let mut labels = sample.labels.clone();
            labels.push(part.to_owned());
            Sample { labels, value: Value::Number(us / 1e6) }
        })
    });
    parts.collect()
}

fn with_profile(view: &View<'_>) -> impl Iterator<Item = (Sample, DeviceProfile)> {
    let named = devices(view, |_, _| Value::Count(0)).into_iter();
    let managers = view.collector.analytics.iter();
    let profiles = managers.flat_map(|watched| watched.latest.profiles());
    let all = named.zip(profiles);
    all.filter_map(|(sample, profile)| Some((sample, profile?)))
}

pub fn failures(view: &View<'_>) -> Vec<Sample> {
    let by_kind = |session: Session<'_>| {
        FailureKind::ALL.map(|kind| {
            let [pipeline, task, device, number] = &session.labels;
            let failures = session.device.failures(kind);
            count(&[pipeline, task, device, number, kind.name()], failures)
        })
    };
    sessions(view).flat_map(by_kind).collect()
}

pub fn stalls(view: &View<'_>) -> Vec<Sample> {
    let flows = view.collector.flows.iter();
    let flows = flows.map(|watched| (watched.thread.to_string(), watched.stalls));
    let analytics = view.collector.analytics_threads();
    let analytics = analytics.map(|watched| (watched.thread.to_string(), watched.stalls));
    let all = flows.chain(analytics);
    all.map(|(worker, stalls)| count(&[&worker], stalls)).collect()
}
