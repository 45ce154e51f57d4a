//! What the kernel labels flows by (`io.capture = "kernel"`): the first task, as the kernel's
//! program wants it. It gives the labels that fenxi would give: the same network in integers, and
//! thresholds that the same confidences pass.

use accel::Bundle;
use config::Config;
use cring::{Context, Feature, Features, Unit, in_words};
use dataplane::bundle::{dscp_by_class, labels, local_context, thresholds};
use dataplane::tasks::OpenTask;
use flowmgr::{PortLabel, SeriesShare};
use packetio::{KernelDepth, KernelLabels, KernelMarks, KernelPort};
use policy::Mark;

use crate::sinks::mark::class_marks;
use crate::weights;

/// What the kernel keeps of a packet, and of how many.
const KEPT: Features = Features::LENGTHS.with(Feature::InterArrival);
const ELEMENTS_MAX: usize = 12;
/// Classes that the kernel numbers.
const CLASSES_MAX: usize = u8::MAX as usize;
/// 1 in Q15.
const ONE: u32 = 1 << 15;

/// What the kernel labels flows by: the first task. The others get its packets at once.
///
/// # Errors
/// Why it cannot.
pub fn kernel_labels(
    config: &Config,
    tasks: &[OpenTask],
    recorded: SeriesShare,
) -> Result<KernelLabels, String> {
    match (tasks, why_not(config, tasks)) {
        ([first, ..], None) => of_tasks(config, tasks, recorded, accel::kernel_net(&first.bundle)?),
        (_, why) => Err(why.unwrap_or_default()),
    }
}

/// Why the kernel cannot label, but for its network.
fn why_not(config: &Config, tasks: &[OpenTask]) -> Option<String> {
    let task = tasks.first()?;
    let (name, labels) = (&task.name, task.bundle.labels().len());
    let local = local_context(&task.bundle);
    let mut devices = task.config.accel.devices.iter();
    let other = devices.find(|device| !device.provider.answers_at_once);
    let beyond = beyond_labels(config).filter(|_| config.tag.in_kernel);
    let reasons = [
        (
            beyond.is_some(),
            format!("{}, and tag.in_kernel goes by labels alone", beyond.unwrap_or_default()),
        ),
        (
            local.is_some(),
            format!(
                "the model reads {}, which the memory of servers gives, and it has none",
                local.map_or("", Context::name)
            ),
        ),
        (
            labels > CLASSES_MAX,
            format!("the model has {labels} labels, and it numbers {CLASSES_MAX}"),
        ),
        (
            other.is_some(),
            format!(
                "task {name} runs on the device {}, whose answers may differ from its own; use \
                 native",
                other.map_or("", |device| &device.name)
            ),
        ),
        (
            config.tasks.first().is_some_and(|it| it.cache.is_some()),
            "the prefix cache may give other labels; leave cache.prefix out".to_owned(),
        ),
    ];
    let reason = reasons.into_iter().find(|(is_so, _)| *is_so).map(|(_, reason)| reason);
    tasks.iter().find_map(not_kept).or(reason)
}

/// What a task wants of packets that the kernel does not keep.
fn not_kept(task: &OpenTask) -> Option<String> {
    let (name, series) = (&task.name, &task.series);
    if series.unit != Unit::Data {
        return Some(format!("task {name} counts packets without payload, too"));
    }
    if series.features.union(KEPT) != KEPT {
        let features = task.bundle.features().join(", ");
        return Some(format!("task {name} reads {features}, and it keeps lengths and times"));
    }
    let k = series.k_max();
    (k > ELEMENTS_MAX)
        .then(|| format!("task {name} reads {k} packets, and it keeps {ELEMENTS_MAX}"))
}

/// What decides about a flow besides its label, which is all that the kernel knows.
fn beyond_labels(config: &Config) -> Option<String> {
    let when = config.tasks.first().filter(|it| !it.when.terms.is_empty());
    let when = when.map(|it| format!("task.{}.when leaves out flows", it.name));
    let acts = weights::acts(config).then(|| "weights.NAME.actions are for flows".to_owned());
    let rules = config.policy.rules.as_ref().map(|_| "policy.rules has rules".to_owned());
    rules.or(acts).or(when)
}

/// The first task as the kernel asks its network `net`.
fn of_tasks(
    config: &Config,
    tasks: &[OpenTask],
    recorded: SeriesShare,
    net: Vec<u8>,
) -> Result<KernelLabels, String> {
    let task = &tasks[0];
    let bundle = &task.bundle;
    let depths = task.series.depths.iter().zip(task.series.sure());
    // The one in front of them, where ports name flows, asks nothing.
    let depths = depths.filter(|(depth, _)| depth.k > 0);
    let depths = depths.map(|(depth, sure)| KernelDepth {
        k: depth.k as u8,
        sure: least(|confidence| sure.is_sure(0, confidence)),
        contradicts: sure
            .contradicts
            .map(|_| least(|confidence| sure.is_contradiction(0, 1, confidence))),
    });
    let port =
        |it: &PortLabel| KernelPort { protocol: it.protocol, port: it.port, class: it.class as u8 };
    let refused = |error: dataplane::Error| error.to_string();
    let (has_others, elements) = (tasks.len() > 1, tasks.iter().map(|it| it.series.k_max()));
    Ok(KernelLabels {
        net,
        depths: depths.collect(),
        least: thresholds(&task.config, bundle).map_err(refused)?.least_q15(),
        sure_classes: bundle.labels().len() as u16,
        ports: task.series.ports.iter().map(port).collect(),
        is_ports_first: task.series.is_ports_first(),
        elements: elements.max().unwrap_or_default() as u8,
        keeps_collecting: has_others || !recorded.is_none(),
        reports_at_once: has_others || config.policy.rules.is_some() || weights::acts(config),
        marks: marks(config, bundle).map_err(refused)?,
        dscp: match config.tag.in_kernel {
            true => dscp_by_class(&task.config, bundle).map_err(refused)?,
            false => Vec::new(),
        },
    })
}

/// The least confidence in Q15 that passes, which 1 does.
fn least(passes: impl Fn(u16) -> bool) -> u16 {
    let mut all = 0..ONE;
    all.find(|&q15| passes(in_words(engine::from_q15(q15)))).unwrap_or(ONE) as u16
}

/// The marks of mode mark, if they go by labels; but for connections of a zone, which the kernel's
/// program does not look up.
fn marks(config: &Config, bundle: &Bundle) -> Result<Option<KernelMarks>, dataplane::Error> {
    if config.mark.zone != 0 || beyond_labels(config).is_some() {
        return Ok(None);
    }
    let marks = class_marks(config, &[labels(bundle)])?;
    Ok(marks.map(|marks| KernelMarks {
        bits: marks.words().map(|word| Mark::of_word(word).map_or(0, |it| it.bits)).collect(),
        mask: config.mark.mask,
        overwrites: marks.overwrites,
    }))
}

#[cfg(test)]
mod tests {
    use accel::Classification;
    use config::Sources;
    use cring::{Answers, Label, Source, resolve};

    use super::*;

    fn open(sets: &[&str]) -> (Config, Vec<OpenTask>) {
        let own = ["io.mode=mark", "io.capture=kernel"].into_iter();
        let sets: Vec<String> = own.chain(sets.iter().copied()).map(str::to_owned).collect();
        let config = crate::sinks::known(Sources::named(None, &sets)).load().unwrap().config;
        let tasks = OpenTask::open_all(&config, None).unwrap();
        (config, tasks)
    }

    fn of(sets: &[&str]) -> KernelLabels {
        let (config, tasks) = open(sets);
        assert_eq!(why_not(&config, &tasks), None);
        of_tasks(&config, &tasks, SeriesShare::NONE, Vec::new()).unwrap()
    }

    /// What the program does with an answer: its class, and whether it decides.
    fn in_kernel(
        labels: &KernelLabels,
        depth: usize,
        port: Option<u16>,
        (column, q15): (u16, u16),
    ) -> (u16, bool) {
        let is_kept = q15 >= labels.least[usize::from(column)];
        let class = if is_kept { column } else { labels.sure_classes };
        let KernelDepth { sure, contradicts, .. } = labels.depths[depth];
        let decides = match port {
            Some(port) => class != port && contradicts.is_some_and(|least| q15 >= least),
            None => class < labels.sure_classes && q15 >= sure,
        };
        (class, decides)
    }

    #[test]
    fn every_confidence_decides_in_the_kernel_as_it_does_here() {
        const PORT: u16 = 1;
        for sets in [
            &[][..],
            &["model.min_confidence=0.5", "model.class_confidence={ TLS = 0.93333, DNS = 1.0 }"],
            &["model.min_confidence=0.0", "model.class_confidence={ TLS = 0.0001 }"],
        ] {
            let (config, tasks) = open(sets);
            let task = &tasks[0];
            let labels = of_tasks(&config, &tasks, SeriesShare::NONE, Vec::new()).unwrap();
            let thresholds = thresholds(&config, &task.bundle).unwrap();
            let sure = task.series.sure();
            let by_model = &sure[1..];
            let columns = task.bundle.shape().classes;
            let mut results: Vec<Classification> = Vec::new();
            for column in [0, 1, 2, columns - 1] {
                for q15 in 1..=ONE {
                    let mut outputs = vec![0.0; columns];
                    outputs[column] = engine::from_q15(q15);
                    thresholds.classify(&outputs, &mut results).unwrap();
                    let Classification { class, confidence } = results[0];
                    let confidence = in_words(confidence);
                    let word =
                        |class, source| Some(Label::Class { class, confidence, source, model: 0 });
                    for (depth, one) in by_model.iter().enumerate() {
                        let answer = (column as u16, q15 as u16);
                        let own = resolve(&[*one, *one], 1, |_| word(class, Source::Model));
                        let own = (class, own == Answers::Decided { depth: 0 });
                        assert_eq!(in_kernel(&labels, depth, None, answer), own, "{q15}");
                        let own = resolve(&[sure[0], *one, *one], 2, |at| match at {
                            0 => word(PORT, Source::Port),
                            _ => word(class, Source::Model),
                        });
                        let own = (class, own == Answers::Decided { depth: 1 });
                        assert_eq!(in_kernel(&labels, depth, Some(PORT), answer), own, "{q15}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_shipped_task_as_the_kernel_gets_it() {
        let (config, tasks) = open(&[]);
        let labels = of(&[]);
        assert_eq!(labels.depths.iter().map(|it| it.k).collect::<Vec<_>>(), [1, 2, 3, 5, 10]);
        let contradicts = labels.depths.iter().map(|it| it.contradicts.is_some());
        assert_eq!(contradicts.collect::<Vec<_>>(), [false, true, false, false, true]);
        assert!(labels.is_ports_first && labels.dscp.is_empty());
        let bundle = &tasks[0].bundle;
        assert_eq!(usize::from(labels.sure_classes), bundle.labels().len());
        let class = |name: &str| bundle.labels().iter().position(|it| it.name == name).unwrap();
        assert!(
            labels.ports.iter().any(|it| {
                (it.protocol, it.port, usize::from(it.class)) == (17, 53, class("DNS"))
            })
        );
        let marks = labels.marks.unwrap();
        assert_eq!((marks.mask, marks.overwrites), (config.mark.mask, false));
        assert_eq!(marks.bits[class("DNS")], 0x400_0000);
        assert_eq!(marks.bits[class("QUIC")], 0, "not in the table");
        let marks = of(&["mark.as=dscp", "mark.overwrite=true"]).marks.unwrap();
        assert_eq!((marks.mask, marks.bits[class("DNS")]), (0xbf, 18 | 0x80));
        assert!(marks.overwrites);
        let rules = "policy.rules=office.toml";
        for beyond in ["mark.zone=3", "task.a.when=protocol = tcp", rules] {
            assert_eq!(of(&[beyond]).marks, None, "fenxi writes them: {beyond}");
        }
        assert_eq!([labels.reports_at_once, of(&[rules]).reports_at_once], [false, true]);
        let labels = of(&["tag.in_kernel=true"]);
        assert_eq!(labels.dscp[class("DNS")], Some(18));
        assert_eq!(labels.dscp[class("QUIC")], None);
        let tap = of(&["io.mode=tap"]);
        assert_eq!(tap.marks, None);
    }

    #[test]
    fn what_the_kernel_cannot_do_has_a_reason() {
        let why = |sets: &[&str]| {
            let (config, tasks) = open(sets);
            why_not(&config, &tasks).unwrap_or_default()
        };
        let model = concat!("model.path=", env!("CARGO_MANIFEST_DIR"), "/../../");
        let of = |folder: &str| [model, folder].concat();
        let of_task = |task: &str, folder: &str| {
            of(folder).replacen("model.path", &format!("task.{task}.model"), 1)
        };
        let rules = "policy.rules=office.toml";
        for (sets, reason) in [
            (&["task.a.depths=[3]", &of_task("b", "models/app-id-k10")][..], "task b counts"),
            (&["tag.in_kernel=true", "task.a.when=protocol = tcp"], "task.a.when leaves out flows"),
            (&["tag.in_kernel=true", rules], "policy.rules has rules, and tag.in_kernel goes by"),
            (&["accel.devices=[\"cpu\"]"], "on the device cpu, whose answers may differ"),
            (&["cache.prefix=3"], "the prefix cache may give other labels"),
            (&[&of("models/app-id-k10")], "counts packets without payload"),
        ] {
            let why = why(sets);
            assert!(why.contains(reason), "{sets:?}: {why}");
        }
        assert_eq!(why(&[&of("models/iot-family")]), "");
        assert_eq!(why(&["task.a.depths=[3]", "task.b.depths=[10]", rules]), "");
    }
}
