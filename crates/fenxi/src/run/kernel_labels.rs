//! What the kernel labels flows by (`io.capture = "kernel"`): the task of the run, as the kernel's
//! program wants it. It gives the labels that fenxi would give: the same network in integers, and
//! thresholds that the same confidences pass.

use accel::Bundle;
use config::Config;
use cring::{Feature, Features, Unit, in_words};
use dataplane::bundle::{dscp_by_class, labels, thresholds};
use dataplane::tasks::OpenTask;
use flowmgr::{PortLabel, SeriesShare};
use packetio::{KernelDepth, KernelLabels, KernelMarks, KernelPort};
use policy::Mark;

use crate::sinks::mark::class_marks;

/// What the kernel keeps of a packet, and of how many.
const KEPT: Features = Features::LENGTHS.with(Feature::InterArrival);
const ELEMENTS_MAX: usize = 12;
/// Classes that the kernel numbers.
const CLASSES_MAX: usize = u8::MAX as usize;
/// 1 in Q15.
const ONE: u32 = 1 << 15;

/// What the kernel labels flows by.
///
/// # Errors
/// Why it cannot.
pub fn kernel_labels(
    config: &Config,
    tasks: &[OpenTask],
    recorded: SeriesShare,
) -> Result<KernelLabels, String> {
    match (tasks, why_not(config, tasks, recorded)) {
        ([task], None) => of_task(config, task, accel::kernel_net(&task.bundle)?),
        (_, why) => Err(why.unwrap_or_default()),
    }
}

/// Why the kernel cannot label, but for its network.
fn why_not(config: &Config, tasks: &[OpenTask], recorded: SeriesShare) -> Option<String> {
    let [task] = tasks else {
        return Some(format!("there are {} tasks, and it asks one model", tasks.len()));
    };
    let (name, bundle) = (&task.name, &task.bundle);
    let first = task.config.tasks.first();
    let devices = task.config.accel.devices.iter();
    let mut others = devices.filter(|device| device.provider.name != "native");
    let features = || bundle.features().join(", ");
    let reasons = [
        first
            .is_some_and(|it| !it.when.terms.is_empty())
            .then(|| format!("task.{name}.when leaves out flows, and it asks about all")),
        config.policy.rules.is_some().then(|| "policy.rules has rules, which it knows not".into()),
        (!recorded.is_none())
            .then(|| "records have series (records.series), which it ends with the label".into()),
        (task.series.unit != Unit::Data)
            .then(|| "the model counts packets without payload, too".into()),
        (task.series.features.union(KEPT) != KEPT)
            .then(|| format!("the model reads {}, and it keeps lengths and times", features())),
        (task.series.k_max() > ELEMENTS_MAX).then(|| {
            let k = task.series.k_max();
            format!("the model reads {k} packets of a flow, and it keeps {ELEMENTS_MAX}")
        }),
        (bundle.labels().len() > CLASSES_MAX).then(|| {
            format!("the model has {} labels, and it knows {CLASSES_MAX}", bundle.labels().len())
        }),
        others.next().map(|device| {
            format!(
                "task {name} runs on the device {}, whose answers may differ from its own; use \
                 native",
                device.name
            )
        }),
        first
            .is_some_and(|it| it.cache.is_some())
            .then(|| "the prefix cache may give other labels; leave cache.prefix out".into()),
    ];
    reasons.into_iter().flatten().next()
}

/// The task as the kernel asks its network `net`.
fn of_task(config: &Config, task: &OpenTask, net: Vec<u8>) -> Result<KernelLabels, String> {
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
    Ok(KernelLabels {
        net,
        generation: 0,
        depths: depths.collect(),
        least: thresholds(config, bundle).map_err(refused)?.least_q15(),
        sure_classes: bundle.labels().len() as u16,
        ports: task.series.ports.iter().map(port).collect(),
        is_ports_first: task.series.is_ports_first(),
        marks: marks(config, bundle).map_err(refused)?,
        dscp: match config.tag.in_kernel {
            true => dscp_by_class(config, bundle).map_err(refused)?,
            false => Vec::new(),
        },
    })
}

/// The least confidence in Q15 that passes, which 1 does.
fn least(passes: impl Fn(u16) -> bool) -> u16 {
    let mut all = 0..ONE;
    all.find(|&q15| passes(in_words(engine::from_q15(q15)))).unwrap_or(ONE) as u16
}

/// The marks of mode mark, but for connections of a zone, which the kernel's program does not look
/// up.
fn marks(config: &Config, bundle: &Bundle) -> Result<Option<KernelMarks>, dataplane::Error> {
    if config.mark.zone != 0 {
        return Ok(None);
    }
    let marks = class_marks(config, &[labels(bundle)])?;
    Ok(marks.map(|marks| KernelMarks {
        bits: marks.words().map(|word| Mark::of_word(word).map_or(0, |it| it.bits)).collect(),
        mask: config.mark.mask,
        overwrites: marks.overwrites,
    }))
}
