//! What the threads of a run record: each step of a flow worker or an analytics worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use analytics::{Accelerator, Refused, Round, Standby};
use dataplane::inline::FlowManager;
use dataplane::pipelines::OpenedManager;
use dataplane::placement::Thread;
use dataplane::recorder::{Change, FlowRecorder, FlowStep, SeriesRecorder};

use crate::counts::Counting;
use crate::device::RecordedDevice;
use crate::event::{Answer, CountsByName, Event, Port, Who};
use crate::forms::{DeviceFacts, ModelSwap, TaskConfig, TaskStart, TaskSwap};
use crate::frame::Keeper;
use crate::journal::{Journal, Recorder, Shared};

/// Interval between two records of a thread's counters.
const COUNTED_EVERY: Duration = Duration::from_millis(250);

impl Recorder {
    /// For the flow worker of this number, through all pipelines.
    pub fn flow_worker(&self, number: usize) -> Box<dyn FlowRecorder> {
        Box::new(FlowSteps {
            number: number as u32,
            thread: ThreadRecorder::new(self, Who::Flow(number as u32)),
            port: Port::default(),
            keeper: Keeper::default(),
        })
    }

    /// For the analytics worker of this number, through all pipelines.
    pub fn analytics_worker(&self, number: usize) -> Box<dyn SeriesRecorder> {
        Box::new(SeriesSteps {
            number: number as u32,
            thread: ThreadRecorder::new(self, Who::Series(number as u32)),
        })
    }

    /// Makes the analytics managers of a run that is recorded.
    ///
    /// # Errors
    /// As [`OpenedManager::managers`].
    pub fn managers(
        &self,
        mut opened: Vec<OpenedManager>,
    ) -> Result<Vec<(Thread, analytics::Manager)>, dataplane::Error> {
        for (manager, opened) in (0..).zip(&mut opened) {
            let tasks = opened.tasks.iter_mut().map(|task| {
                let devices = task.accelerators.iter_mut().map(DeviceFacts::new);
                let devices = devices.collect();
                self.wrap(&mut task.accelerators);
                let config = TaskConfig(task.config.clone());
                TaskStart { config, devices }
            });
            let tasks = tasks.collect();
            self.record(&Event::Start { manager, tasks });
        }
        let mut managers = OpenedManager::managers(opened)?;
        let tasks = managers.iter_mut().flat_map(|(_, it)| it.tasks_mut());
        tasks.for_each(|task| task.set_cost_clock(self.cost_clock()));
        Ok(managers)
    }

    /// Wraps devices so that their answers are recorded.
    pub fn wrap(&self, accelerators: &mut Vec<Accelerator>) {
        let wrapped = std::mem::take(accelerators).into_iter().map(|it| Accelerator {
            device: Box::new(RecordedDevice { inner: it.device, shared: self.0.clone() }),
            ..it
        });
        *accelerators = wrapped.collect();
    }

    /// The clock that prices a manager's prefix cache; its readings are recorded.
    fn cost_clock(&self) -> impl Fn() -> u64 + Send + 'static {
        let (shared, began) = (self.0.clone(), Instant::now());
        move || {
            let cost_ns = began.elapsed().as_nanos() as u64;
            if shared.is_on() {
                shared.calls().costs.push(cost_ns);
            }
            cost_ns
        }
    }
}

struct ThreadRecorder {
    shared: Arc<Shared>,
    who: Who,
    /// False for good once the thread has left the recording.
    is_open: bool,
    /// The event under way.
    body: Vec<u8>,
    counted: Instant,
    /// The counters that were written last, at `counted`.
    counts: CountsByName,
}

impl ThreadRecorder {
    fn new(recorder: &Recorder, who: Who) -> ThreadRecorder {
        ThreadRecorder {
            shared: recorder.0.clone(),
            who,
            is_open: recorder.0.lock().enter(),
            body: Vec::new(),
            counted: Instant::now(),
            counts: CountsByName::new(),
        }
    }

    /// Takes a step whose event is in the body.
    fn step<M: Counting, T>(&mut self, manager: &mut M, act: impl FnOnce(&mut M) -> T) -> T {
        self.step_then(manager, act, |_, _| {})
    }

    /// The same; `describe` writes into the body what is known only after the step. It must write
    /// little, since the size of the body was checked before.
    fn step_then<M: Counting, T>(
        &mut self,
        manager: &mut M,
        act: impl FnOnce(&mut M) -> T,
        describe: impl FnOnce(&Shared, &mut Vec<u8>),
    ) -> T {
        if !self.is_open {
            return act(manager);
        }
        let shared = self.shared.clone();
        let mut journal = shared.lock();
        if !journal.takes(&shared, self.body.len()) {
            self.leave_with(&mut journal, manager);
            drop(journal);
            return act(manager);
        }
        let done = act(manager);
        describe(&shared, &mut self.body);
        journal.append(&shared, &self.body);
        if self.counted.elapsed() >= COUNTED_EVERY {
            self.counted = Instant::now();
            let counts = manager.counts(&shared.classes);
            if counts != self.counts {
                self.counts.clone_from(&counts);
                let who = self.who;
                Event::Counted { who, counts }.encode(&mut self.body);
                journal.append(&shared, &self.body);
            }
        }
        done
    }

    fn leave(&mut self, manager: &impl Counting) {
        if self.is_open {
            let shared = self.shared.clone();
            self.leave_with(&mut shared.lock(), manager);
        }
    }

    fn leave_with(&mut self, journal: &mut Journal, manager: &impl Counting) {
        self.is_open = false;
        let (who, counts) = (self.who, manager.counts(&self.shared.classes));
        journal.leave(&self.shared, &Event::Counted { who, counts });
    }
}

struct FlowSteps {
    number: u32,
    thread: ThreadRecorder,
    /// Where the next burst comes from.
    port: Port,
    keeper: Keeper,
}

impl FlowRecorder for FlowSteps {
    fn step(&mut self, manager: &mut FlowManager, step: FlowStep<'_>) -> usize {
        if let FlowStep::Port { port, owns_flows } = step {
            self.port = Port { number: port, owns_flows };
            return step.apply(manager);
        }
        if self.thread.is_open {
            // Before the walk, which may write into the packets.
            self.describe(&step);
        }
        self.thread.step(manager, |manager| step.apply(manager))
    }

    fn leave(&mut self, manager: &FlowManager) {
        self.thread.leave(manager);
    }
}

impl FlowSteps {
    fn describe(&mut self, step: &FlowStep<'_>) {
        let (manager, from) = (self.number, self.port);
        let event = match step {
            // Told with the next burst.
            FlowStep::Port { .. } => return,
            FlowStep::Burst(data, packets, now_ns, _) => Event::Burst {
                manager,
                now_ns: *now_ns,
                from,
                frames: self.keeper.frames(data, packets),
            },
            FlowStep::Count(flows, _) => {
                Event::Count { manager, from, flows: flows.iter().map(Into::into).collect() }
            }
            FlowStep::Pass(time_us) => Event::Pass { manager, time_us: *time_us },
            FlowStep::Settle(most, now_ns, _) => {
                Event::Settle { manager, now_ns: *now_ns, most: *most as u64 }
            }
            FlowStep::Configure(settings) => {
                Event::Configure { manager, settings: (**settings).clone() }
            }
            FlowStep::ChangeRules(change) => Event::ChangeRules {
                manager,
                has_bounds: change.has_bounds,
                has_behaviours: change.has_behaviours,
                label_tasks: change.label_tasks,
                is_renumbered: change.is_renumbered,
            },
            FlowStep::AnswerRules(answers, _, _, now_ns, _) => Event::AnswerRules {
                manager,
                now_ns: *now_ns,
                answers: answers.iter().copied().map(Answer).collect(),
            },
            FlowStep::Drain => Event::Drain { manager },
        };
        event.encode(&mut self.thread.body);
    }
}

/// The rounds and swaps of an analytics worker.
struct SeriesSteps {
    number: u32,
    thread: ThreadRecorder,
}

impl SeriesRecorder for SeriesSteps {
    fn is_open(&self) -> bool {
        self.thread.is_open
    }

    fn round(&mut self, manager: &mut analytics::Manager, now_ns: u64, drains: bool) -> Round {
        let number = self.number;
        self.thread.body.clear();
        let act = |manager: &mut analytics::Manager| manager.round(now_ns);
        self.thread.step_then(manager, act, |shared, body| {
            let calls = std::mem::take(&mut *shared.calls());
            let event = Event::Round {
                manager: number,
                now_ns,
                drains,
                costs: calls.costs,
                calls: calls.calls,
            };
            event.encode(body);
        })
    }

    fn prepare(
        &mut self,
        manager: &mut analytics::Manager,
        task: usize,
        mut standby: Standby,
        change: Option<&Change>,
    ) -> Result<(), Refused> {
        if self.thread.is_open {
            let model = standby.model.as_mut().map(|model| {
                let devices = model.accelerators.iter_mut().map(DeviceFacts::new);
                let devices = devices.collect();
                ModelSwap { devices, generation: model.generation, coming: model.coming }
            });
            let change = change.filter(|_| standby.settings.is_some()).cloned();
            let settings = change.map(|(old, new)| (TaskConfig(old), TaskConfig(new)));
            let event = Event::Prepare {
                manager: self.number,
                task: task as u32,
                swap: TaskSwap { model, settings },
            };
            event.encode(&mut self.thread.body);
        }
        self.thread.step(manager, |manager| manager.tasks_mut()[task].prepare(standby))
    }

    fn commit(&mut self, manager: &mut analytics::Manager, task: usize) {
        let event = Event::Commit { manager: self.number, task: task as u32 };
        event.encode(&mut self.thread.body);
        self.thread.step(manager, |manager| manager.tasks_mut()[task].commit());
    }

    fn abort(&mut self, manager: &mut analytics::Manager, task: usize) -> Option<Standby> {
        let event = Event::Abort { manager: self.number, task: task as u32 };
        event.encode(&mut self.thread.body);
        self.thread.step(manager, |manager| manager.tasks_mut()[task].abort())
    }

    fn leave(&mut self, manager: &analytics::Manager) {
        self.thread.leave(manager);
    }
}
