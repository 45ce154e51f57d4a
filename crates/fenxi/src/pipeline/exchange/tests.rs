use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::config::Sources;
use crate::control::in_use::InUse;
use crate::pipeline::helpers::RunLasts;
use crate::pipeline::threads::Cores;
use crate::pipeline::{FlowOptions, PacketSide, open_bundle};

/// Two pipelines' worth of analytics managers with simulated devices.
struct Rig {
    config: Config,
    exchange: Exchange,
    in_use: Arc<InUse>,
    _lasts: RunLasts,
    threads: Vec<(Manager, ExchangePort)>,
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
    let dir = crate::pipeline::find_bundle(&config, None).unwrap();
    let bundle = open_bundle(&config, &dir).unwrap();
    let cores = Cores::of(&config);
    let options = FlowOptions {
        effect: flowmgr::Effect::Arrival,
        record_series: false,
    };
    let packets = PacketSide::build(&config, &bundle, options).unwrap();
    let managers = packets
        .series
        .managers(&config, &bundle, &cores, None)
        .unwrap();
    let in_use = Arc::new(InUse::new(&bundle, &config));
    let (helpers, lasts) = Helpers::new(&cores, in_use.clone());
    let (exchange, ports) = Exchange::new(&helpers, &bundle, &managers);
    let managers = managers.into_iter().map(|(_, manager)| manager);
    Rig {
        config,
        exchange,
        in_use,
        _lasts: lasts,
        threads: managers.zip(ports).collect(),
    }
}

impl Rig {
    /// Does `work` while the analytics threads go round.
    fn running<T>(&mut self, work: impl FnOnce(&mut Exchange, &Config) -> T) -> T {
        let stop = AtomicBool::new(false);
        let (exchange, config, stop) = (&mut self.exchange, &self.config, &stop);
        std::thread::scope(|scope| {
            for (manager, port) in &mut self.threads {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        port.exchange(manager, None);
                        manager.round(0);
                        std::thread::yield_now();
                    }
                });
            }
            let done = work(exchange, config);
            stop.store(true, Ordering::Relaxed);
            done
        })
    }

    fn swaps(&self) -> Vec<u64> {
        let managers = self.threads.iter();
        managers
            .map(|(manager, _)| manager.counters().swaps)
            .collect()
    }

    /// Exchanges done, refused and reverted.
    fn results(&self) -> [u64; 3] {
        let swaps = self.exchange.swaps();
        [swaps.done, swaps.refused, swaps.reverted]
    }

    /// The same model once more.
    fn exchange_model(&mut self) -> Result<Option<Before>, Refusal> {
        self.running(|exchange, config| {
            let prepared = exchange
                .opening()
                .prepare(config, exchange.bundle.clone())?;
            exchange.exchange(prepared)
        })
    }
}

#[test]
fn where_one_manager_refuses_none_changes() {
    let mut rig = rig();
    // Something stands by already, which no exchange of ours knows of.
    rig.threads[1].0.prepare(Standby::default()).unwrap();
    let Err(Refusal::Because(why)) = rig.exchange_model() else {
        panic!("not refused");
    };
    assert!(why.to_string().starts_with("analytics-0.1: "), "{why}");
    assert!(rig.threads[0].0.abort().is_none(), "it stood down");
    assert_eq!(
        (rig.swaps(), rig.in_use.standing().model.generation),
        (vec![0, 0], 0)
    );
    assert_eq!(rig.results(), [0, 1, 0]);
    assert_eq!(rig.exchange.swaps().last_refusal, Some(why.to_string()));

    assert!(rig.threads[1].0.abort().is_some());
    assert!(rig.exchange_model().unwrap().is_some());
    assert_eq!(
        (rig.swaps(), rig.in_use.standing().model.generation),
        (vec![1, 1], 1)
    );
    assert_eq!(rig.results(), [1, 1, 0]);
}

#[test]
fn settings_come_with_a_model_or_without_and_what_was_before_can_come_back() {
    let mut rig = rig();
    let other = config(&[
        "analytics.policy=none",
        "cache.prefix=4",
        "cache.entries=128",
    ]);
    let before = rig.running(|exchange, now| {
        let prepared = exchange
            .opening()
            .keep(&other)
            .with_settings(now, &other)
            .unwrap();
        assert!(prepared.is_something() && !prepared.has_model());
        exchange.exchange(prepared).unwrap()
    });
    assert!(before.is_none());
    let standing = rig.in_use.standing();
    assert_eq!(
        (standing.model.generation, standing.cache_entries),
        (0, 2 * 128)
    );
    assert!(!rig.exchange.opening().keep(&other).is_something());
    assert_eq!(rig.results(), [0, 0, 0], "settings are no model");

    let before = rig.exchange_model().unwrap().expect("the old sessions");
    rig.running(|exchange, config| {
        let mut prepared = exchange
            .opening()
            .again(config, before)
            .expect("nothing had hung");
        prepared.is_return = true;
        exchange.exchange(prepared).unwrap();
    });
    assert_eq!((rig.swaps(), rig.results()), (vec![2, 2], [1, 0, 1]));
    assert_eq!(rig.in_use.standing().model.generation, 2);
}

#[test]
fn the_end_of_a_run_ends_an_exchange() {
    let mut rig = rig();
    rig.threads.pop();
    let refused = rig.exchange_model();
    assert!(matches!(refused, Err(Refusal::RunEnded)));
    assert_eq!(rig.results(), [0, 0, 0], "nobody refused");
}

#[test]
fn a_model_that_cannot_be_opened_or_used_is_refused_once() {
    let rig = rig();
    let nowhere = rig
        .exchange
        .opening()
        .open(&rig.config, Path::new("/nowhere"));
    assert!(nowhere.is_err());
    assert_eq!(rig.results(), [0, 1, 0]);
    let no_device = config(&[
        "device.d.provider=plugin",
        "device.d.plugin=/nowhere",
        "accel.devices=[\"d\"]",
    ]);
    let prepared = rig
        .exchange
        .opening()
        .prepare(&no_device, rig.exchange.bundle.clone());
    let Some(Refusal::Because(why)) = prepared.err() else {
        panic!("there is no such plug-in");
    };
    assert_eq!(rig.results(), [0, 2, 0]);
    assert_eq!(rig.exchange.swaps().last_refusal, Some(why.to_string()));
}

#[test]
fn classes_must_mean_what_they_meant() {
    let found = ["a".to_owned(), "b".to_owned()];
    let in_use = ["b".to_owned(), "a".to_owned()];
    let refused = check_meaning(Path::new("d"), "labels", &found, &in_use).unwrap_err();
    assert!(refused.to_string().starts_with("d: the labels are a, b"));
    assert!(check_meaning(Path::new("d"), "labels", &found, &found).is_ok());
}

/// One of two threads is stuck in a device. The other one is left as it was, and nothing of the exchange is found later.
#[test]
fn where_one_manager_does_not_answer_none_changes() {
    let mut rig = rig();
    rig.exchange.answer_within = Duration::from_millis(50);
    let stuck = rig.threads.pop().unwrap();
    let Err(Refusal::Because(why)) = rig.exchange_model() else {
        panic!("not called off");
    };
    let line = why.to_string();
    assert!(
        line.starts_with("analytics-0.1: no answer within"),
        "{line}"
    );
    assert_eq!((rig.swaps(), rig.results()), (vec![0], [0, 1, 0]));

    // As long as it is stuck there is no other exchange.
    let Err(Refusal::Because(why)) = rig.exchange_model() else {
        panic!("not refused");
    };
    assert!(why.to_string().contains("still busy"), "{why}");
    assert_eq!(rig.results(), [0, 2, 0]);

    // It comes back: it finds the offer and the step that takes it back.
    rig.threads.push(stuck);
    rig.exchange.answer_within = Duration::from_secs(60);
    let (manager, port) = &mut rig.threads[1];
    for _ in 0..3 {
        port.exchange(manager, None);
        manager.round(0);
    }
    assert_eq!(rig.swaps(), [0, 0]);
    assert!(rig.exchange_model().unwrap().is_some());
    assert_eq!((rig.swaps(), rig.results()), (vec![1, 1], [1, 2, 0]));
}
