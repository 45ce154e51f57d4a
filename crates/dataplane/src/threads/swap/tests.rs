use std::sync::atomic::{AtomicBool, Ordering};

use super::helpers::RunGuard;
use super::*;
use crate::opening::pipelines::{FlowOptions, OpenedManager, PacketSide};
use crate::opening::profiles::Profiles;
use crate::placement::Cores;
use crate::threads::recorder::NotRecorded;
use crate::threads::state::SharedState;
use analytics::{Manager, Task};
use config::{Config, Sources};
use std::path::Path;

/// Two pipelines' worth of analytics managers with simulated devices.
struct Rig {
    config: Config,
    swapper: Swapper,
    state: Arc<SharedState>,
    _lasts: RunGuard,
    threads: Vec<(Manager, SwapPort)>,
}

fn config(sets: &[&str]) -> Config {
    let base = [
        "accel.devices=[\"simulated\"]",
        "pipeline.layout=2:2:2",
        "flow.max_flows=64",
        "ring.slots=64",
    ];
    let sets = base.iter().chain(sets).map(|set| (*set).to_owned());
    let sets: Vec<String> = sets.collect();
    Sources::named(None, &sets).load().unwrap().config
}

fn rig() -> Rig {
    let config = config(&[]);
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/app-id-k10"));
    let tasks = OpenTask::open_all(&config, Some(dir)).unwrap();
    let cores = Cores::from_config(&config);
    let options =
        FlowOptions { effect: flowmgr::Effect::Arrival, record_series: flowmgr::SeriesShare::NONE };
    let packets = PacketSide::build(&config, &tasks, options).unwrap();
    let opened = packets.series.open(&tasks, &cores, &Profiles::new(&tasks));
    let managers = OpenedManager::managers(opened.unwrap()).unwrap();
    let state = Arc::new(SharedState::new(&tasks));
    let (helpers, lasts) = Helpers::new(&cores, state.clone());
    let (swapper, mut ports) = Swapper::new(&helpers, 0, &tasks[0], &cores);
    let threads = managers.into_iter().map(|(thread, manager)| {
        let port = ports.take(&thread).pop().unwrap();
        (manager, port)
    });
    Rig { config, swapper, state, _lasts: lasts, threads: threads.collect() }
}

/// The only task of a worker.
fn task(worker: &mut (Manager, SwapPort)) -> &mut Task {
    &mut worker.0.tasks_mut()[0]
}

impl Rig {
    /// Does `work` while the analytics threads go round.
    fn running<T>(&mut self, work: impl FnOnce(&mut Swapper, &Config) -> T) -> T {
        let stop = AtomicBool::new(false);
        let (swapper, config, stop) = (&mut self.swapper, &self.config, &stop);
        std::thread::scope(|scope| {
            for (manager, port) in &mut self.threads {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        port.serve(manager, &mut NotRecorded);
                        manager.round(0);
                        std::thread::yield_now();
                    }
                });
            }
            let done = work(swapper, config);
            stop.store(true, Ordering::Relaxed);
            done
        })
    }

    fn swaps(&self) -> Vec<u64> {
        let managers = self.threads.iter();
        managers.map(|(manager, _)| manager.tasks()[0].counters().swaps).collect()
    }

    /// Exchanges done, refused and reverted.
    fn results(&self) -> [u64; 3] {
        let swaps = self.swapper.swaps();
        [swaps.done, swaps.refused, swaps.reverted]
    }

    /// The same model once more.
    fn swap_model(&mut self) -> Result<Option<Previous>, Refusal> {
        self.running(|swapper, config| {
            let prepared = swapper.opening().prepare(config, swapper.bundle.clone())?;
            swapper.swap(prepared)
        })
    }
}

/// Flow managers go on to collect what they did, so another unit or another K is refused.
#[test]
fn a_model_for_other_series_is_refused() {
    let rig = rig();
    let opening = rig.swapper.opening();
    let bundles = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/bundles"));
    for (name, why) in [
        ("data-k3", "the unit and k are data, k = 3, but packet, k = 10 in the model in use"),
        (
            "times-k10",
            "the features are signed_length, inter_arrival_us, but signed_length in the model in \
             use",
        ),
    ] {
        let refused = opening.open(&rig.config, &bundles.join(name));
        let refused = refused.expect_err("refused").to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn where_one_manager_refuses_none_changes() {
    let mut rig = rig();
    // Something stands by already, which no exchange of ours knows of.
    task(&mut rig.threads[1]).prepare(Standby::default()).unwrap();
    let Err(Refusal::Because(why)) = rig.swap_model() else {
        panic!("not refused");
    };
    assert!(why.to_string().starts_with("analytics-0.1: "), "{why}");
    assert!(task(&mut rig.threads[0]).abort().is_none(), "it stood down");
    assert_eq!((rig.swaps(), rig.state.get().first().model.generation), (vec![0, 0], 0));
    assert_eq!(rig.results(), [0, 1, 0]);
    assert_eq!(rig.swapper.swaps().last_refusal, Some(why.to_string()));

    assert!(task(&mut rig.threads[1]).abort().is_some());
    assert!(rig.swap_model().unwrap().is_some());
    assert_eq!((rig.swaps(), rig.state.get().first().model.generation), (vec![1, 1], 1));
    assert_eq!(rig.results(), [1, 1, 0]);
}

#[test]
fn settings_come_with_a_model_or_without_and_what_was_before_can_come_back() {
    let mut rig = rig();
    let other = config(&["analytics.policy=none", "cache.prefix=4", "cache.entries=128"]);
    let before = rig.running(|swapper, now| {
        let prepared = swapper.opening().keep(&other).with_settings(now, &other).unwrap();
        assert!(prepared.is_something() && !prepared.has_model());
        swapper.swap(prepared).unwrap()
    });
    assert!(before.is_none());
    let state = rig.state.get();
    let state = state.first();
    assert_eq!((state.model.generation, state.cache_entries), (0, 2 * 128));
    assert!(!rig.swapper.opening().keep(&other).is_something());
    assert_eq!(rig.results(), [0, 0, 0], "settings are no model");

    let before = rig.swap_model().unwrap().expect("the old sessions");
    rig.running(|swapper, config| {
        let mut prepared = swapper.opening().again(config, before).expect("nothing had hung");
        prepared.is_return = true;
        swapper.swap(prepared).unwrap();
    });
    assert_eq!((rig.swaps(), rig.results()), (vec![2, 2], [1, 0, 1]));
    assert_eq!(rig.state.get().first().model.generation, 2);
}

#[test]
fn a_canary_is_promoted_and_goes_by_command_or_when_another_model_comes() {
    fn begin(rig: &mut Rig) -> Option<u16> {
        let begun = rig.running(|swapper, config| {
            let prepared = swapper.opening().prepare(config, swapper.bundle.clone())?;
            swapper.swap(prepared.as_canary())
        });
        assert!(begun.unwrap().is_none());
        rig.swapper.canary()
    }
    let mut rig = rig();
    let in_use = |rig: &Rig| rig.state.get().first().model.generation;
    assert_eq!((begin(&mut rig), in_use(&rig)), (Some(1), 0));
    assert_eq!(rig.running(|swapper, _| swapper.canary_failure().unwrap()), None);
    assert_eq!((rig.swaps(), rig.results()), (vec![0, 0], [0, 0, 0]));
    let before = rig.running(|swapper, config| {
        let promoted = swapper.opening().promote(config).expect("a canary");
        swapper.swap(promoted).unwrap()
    });
    assert_eq!((before.is_some(), rig.swapper.canary(), in_use(&rig)), (true, None, 1));
    assert_eq!((rig.swaps(), rig.results()), (vec![1, 1], [1, 0, 0]));
    let knows = |rig: &Rig, model| rig.state.get().first().model_of(model).is_some();
    assert_eq!([0, 1, 2].map(|model| knows(&rig, model)), [true, true, false]);

    // The model before the promotion can come back still.
    assert_eq!(begin(&mut rig), Some(2));
    rig.running(|swapper, config| {
        let again = swapper.opening().again(config, before.unwrap()).expect("nothing had hung");
        swapper.swap(again).unwrap();
    });
    assert_eq!((rig.swapper.canary(), in_use(&rig)), (None, 3));
    assert_eq!(begin(&mut rig), Some(4));
    rig.running(|swapper, _| swapper.withdraw().unwrap());
    assert_eq!((rig.swapper.canary(), in_use(&rig)), (None, 3));
    assert!(rig.swapper.opening().promote(&rig.config).is_none());
    assert_eq!(rig.swaps(), [2, 2]);
}

#[test]
fn the_end_of_a_run_ends_an_exchange() {
    let mut rig = rig();
    rig.threads.pop();
    let refused = rig.swap_model();
    assert!(matches!(refused, Err(Refusal::RunEnded)));
    assert_eq!(rig.results(), [0, 0, 0], "nobody refused");
}

#[test]
fn a_model_that_cannot_be_opened_or_used_is_refused_once() {
    let rig = rig();
    let nowhere = rig.swapper.opening().open(&rig.config, Path::new("/nowhere"));
    assert!(nowhere.is_err());
    assert_eq!(rig.results(), [0, 1, 0]);
    let no_device =
        config(&["device.d.provider=plugin", "device.d.plugin=/nowhere", "accel.devices=[\"d\"]"]);
    let prepared = rig.swapper.opening().prepare(&no_device, rig.swapper.bundle.clone());
    let Some(Refusal::Because(why)) = prepared.err() else {
        panic!("there is no such plug-in");
    };
    assert_eq!(rig.results(), [0, 2, 0]);
    assert_eq!(rig.swapper.swaps().last_refusal, Some(why.to_string()));
}

/// One of two threads is stuck in a device. The other one is left as it was, and nothing of the
/// exchange is found later.
#[test]
fn where_one_manager_does_not_answer_none_changes() {
    let mut rig = rig();
    rig.swapper.answer_within = Duration::from_millis(50);
    let stuck = rig.threads.pop().unwrap();
    let Err(Refusal::Because(why)) = rig.swap_model() else {
        panic!("not called off");
    };
    let line = why.to_string();
    assert!(line.starts_with("analytics-0.1: no answer within"), "{line}");
    assert_eq!((rig.swaps(), rig.results()), (vec![0], [0, 1, 0]));

    // As long as it is stuck there is no other exchange.
    let Err(Refusal::Because(why)) = rig.swap_model() else {
        panic!("not refused");
    };
    assert!(why.to_string().contains("still busy"), "{why}");
    assert_eq!(rig.results(), [0, 2, 0]);

    // It comes back: it finds the offer and the step that takes it back.
    rig.threads.push(stuck);
    rig.swapper.answer_within = Duration::from_secs(60);
    let (manager, port) = &mut rig.threads[1];
    for _ in 0..3 {
        port.serve(manager, &mut NotRecorded);
        manager.round(0);
    }
    assert_eq!(rig.swaps(), [0, 0]);
    assert!(rig.swap_model().unwrap().is_some());
    assert_eq!((rig.swaps(), rig.results()), (vec![1, 1], [1, 2, 0]));
}
