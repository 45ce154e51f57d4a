//! The policy thread with a flow worker that has no flows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use config::Sources;
use dataplane::placement::Cores;
use dataplane::rules::FlowRules;
use dataplane::settings::{SettingsPort, settings};
use dataplane::swap::helpers::RunGuard;
use dataplane::tasks::OpenTask;
use tokio::sync::oneshot;

use super::*;
use crate::rules::Traffic;

const LONG: Duration = Duration::from_secs(60);

/// The behaviour of a worker on updates.
struct Worker {
    thread: JoinHandle<Option<Box<dyn FlowRules>>>,
    ends: Arc<AtomicBool>,
}

impl Worker {
    fn start(port: SettingsPort) -> Worker {
        let ends = Arc::new(AtomicBool::new(false));
        let is_ending = ends.clone();
        let thread = std::thread::spawn(move || {
            let mut rules: Option<Box<dyn FlowRules>> = None;
            while !is_ending.load(Ordering::Relaxed) {
                port.take(|update| {
                    let Some(mut new) = update.rules.take() else {
                        return;
                    };
                    match &mut rules {
                        Some(rules) => {
                            new.replace(rules);
                            update.rules = Some(new);
                        }
                        none => *none = Some(new.begin().0),
                    }
                });
                std::thread::sleep(Duration::from_micros(100));
            }
            rules
        });
        Worker { thread, ends }
    }

    /// The rules that it has used last.
    fn end(self) -> Option<Box<dyn FlowRules>> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

struct World {
    running: Running,
    state: Arc<SharedState>,
    port: Option<SettingsPort>,
    _lasts: RunGuard,
}

impl World {
    fn new(set: &[&str]) -> World {
        let set: Vec<String> = set.iter().map(|&set| set.to_owned()).collect();
        let config = Sources::named(None, &set).load().unwrap().config;
        let tasks = OpenTask::open_all(&config, None).unwrap();
        let state = Arc::new(SharedState::new(&tasks));
        let (helpers, lasts) = Helpers::new(&Cores::from_config(&config), state.clone());
        let rules = Rules::load(&config, &OpenTask::all_labels(&tasks), Traffic::Live).unwrap();
        let (sender, port) = settings();
        let workers = Workers::new(vec![sender], false, 1 << 10);
        let run_ended = helpers.run_ended().clone();
        let rules = SharedRules::new(RunningRules::new(rules, workers, state.clone(), run_ended));
        World {
            running: Running::start(rules, helpers).unwrap(),
            state,
            port: Some(port),
            _lasts: lasts,
        }
    }

    fn worker(&mut self) -> Worker {
        Worker::start(self.port.take().unwrap())
    }

    fn ask(&self, request: Request) -> oneshot::Receiver<Reply> {
        let (answer, answers) = oneshot::channel();
        self.running.ask(Call { request, answer });
        answers
    }

    fn change(&self, text: &str) -> Reply {
        self.ask(change(text)).blocking_recv().unwrap()
    }

    fn undo(&self) -> Reply {
        self.ask(Request::PolicyUndo {}).blocking_recv().unwrap()
    }
}

fn change(text: &str) -> Request {
    Request::PolicyChange { changes: text.to_owned() }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn workers_get_each_change_and_a_load_is_undone() {
    let mut world = World::new(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    assert_eq!(world.state.get().rules.rules, None);
    let worker = world.worker();
    for round in 1..=3 {
        let reply = world.change("add dscp = \"CS1\"");
        assert_eq!(reply.code, Code::Ok as u16, "{reply:?}");
        assert_eq!(world.state.get().rules.rules, Some(round));
    }
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), "[[rule]]\ndrop = true\n").unwrap();
    let load = Request::PolicyLoad { file: file.path().to_owned() };
    let reply = world.ask(load).blocking_recv().unwrap();
    assert_eq!(reply.code, Code::Ok as u16, "{reply:?}");
    assert_eq!(world.state.get().rules.rules, Some(1));
    // The load, and the three changes before it.
    for left in [3, 2, 1, 0] {
        let reply = world.undo();
        assert_eq!(reply.code, Code::Ok as u16, "{reply:?}");
        assert_eq!(world.state.get().rules.rules, Some(left));
    }
    let reply = world.undo();
    assert_eq!(reply.code, Code::Conflict as u16, "{reply:?}");
    let updates = world.state.get().rules_updates;
    assert_eq!((updates.applied, updates.refused), ([3, 1, 4, 0], [0, 0, 1, 0]));
    assert!(worker.end().is_some());
}

#[test]
fn a_full_queue_is_told() {
    let mut world = World::new(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    // No worker takes the first change, so the others wait.
    let add = || change("add dscp = \"CS1\"");
    let mut waiting = vec![world.ask(add())];
    let busy = loop {
        let mut answers = world.ask(add());
        match answers.try_recv() {
            Ok(reply) => break reply,
            Err(_) => waiting.push(answers),
        }
        assert!(waiting.len() <= QUEUE + 1, "the queue has no end");
    };
    assert_eq!(busy.code, Code::Busy as u16);
    assert!(busy.error.unwrap().contains("send changes in one batch"));
    let (worker, count) = (world.worker(), waiting.len());
    for answers in waiting {
        let reply = answers.blocking_recv().unwrap();
        assert_eq!(reply.code, Code::Ok as u16, "{reply:?}");
    }
    assert_eq!(world.state.get().rules.rules, Some(count as u64));
    worker.end();
}

#[test]
fn many_changes_lead_to_a_training_and_go_on_meanwhile() {
    let mut world = World::new(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    let worker = world.worker();
    let rule = |at: u32| format!("add source = \"10.{}.{}.1\", dscp = \"CS1\"", at / 256, at % 256);
    let batch: Vec<String> = (0..2000).map(rule).collect();
    assert_eq!(world.change(&batch.join("\n")).code, Code::Ok as u16);
    for at in 0..10 {
        assert_eq!(world.change(&rule(3000 + at)).code, Code::Ok as u16);
    }
    wait_until(|| world.state.get().rules_updates.trainings > 0);
    let rules = world.state.get().rules;
    assert_eq!(rules.learned + rules.remainder, 2010);
    assert!(rules.learned >= 1900, "{rules:?}");
    let [v4, _] = worker.end().unwrap().in_force().policy.describe();
    assert_eq!(v4.learned() as u64, rules.learned);
}

#[test]
fn delayed_changes_count_once_they_are_trained() {
    let mut world =
        World::new(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]", "policy.update=delayed"]);
    let worker = world.worker();
    let reply = world.change("add dscp = \"CS1\"");
    let Some(Body::PolicyChanged(changed)) = reply.body else {
        panic!("{reply:?}");
    };
    assert!(changed.is_pending);
    wait_until(|| world.state.get().rules_updates.trainings > 0);
    let [v4, v6] = worker.end().unwrap().in_force().policy.describe();
    assert_eq!((v4.remainder, v6.remainder), (1, 1));
}
