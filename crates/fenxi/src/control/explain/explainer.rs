//! Explains flows of a running instance: finds them, and asks the models on a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use config::Config;
use config::checked::{Capture, IoMode};
use dataplane::bundle::dscp_by_class;
use dataplane::state::{ModelId, TaskState};
use dataplane::tasks::TaskNames;
use flowmgr::record::{DecidedBy, Decision};
use policy::Dscp;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use super::super::Facts;
use super::super::flow_rows::{ended_row, live_row};
use super::super::flow_tables::FlowTables;
use super::{Asked, AskedTask, Subject, ask, explanation, wanted};
use crate::figures::grouped;
use crate::protocol::{Body, Code, FlowQuery, Overview, Reply, Written};

/// How long the model may take to be opened and asked.
const ASK_WITHIN: Duration = Duration::from_secs(30);

/// The flow that a query means, and the number of other matches. A live flow comes before one that
/// has ended.
pub async fn find(
    tables: &mut FlowTables,
    query: &FlowQuery,
    names: &[TaskNames],
) -> Option<(Subject, usize)> {
    let wanted = wanted(query);
    let live = tables.find(wanted).await;
    let recent = tables.recent.lock();
    let mut ended = recent.find(&wanted).filter(|known| known.ended.is_some());
    if let Some((detail, live)) = live {
        let known = recent.get(detail.look.flow.flow_id);
        let row = live_row(&live, &recent, names, &tables.names);
        return Some((Subject::live(row, &detail, &live, known), ended.count()));
    }
    let known = ended.next()?;
    let host = tables.host(known.flow.source.0, known.flow.destination.0);
    let row = ended_row(known, host, names, &tables.names);
    Some((Subject::ended(row, known), ended.count()))
}

pub fn nowhere(query: &FlowQuery, overview: &Overview) -> String {
    let mut why = format!(
        "no flow {query}: it is in no flow table, and not among the latest that have ended. Only \
        TCP, UDP and ICMP make flows, by the addresses of the outer header; fragments do not"
    );
    if overview.table_full > 0 {
        let packets = grouped(overview.table_full);
        why += &format!(
            ". {packets} packets found the table full, so flows may be missing: raise \
            flow.max_flows"
        );
    }
    if overview.dropped > 0 {
        let packets = grouped(overview.dropped);
        why += &format!(". {packets} packets were lost before they were read");
    }
    why
}

/// Asks the models about one flow at a time.
#[derive(Default)]
pub struct Explainer {
    /// Held by the thread that asks the models.
    turn: Arc<Mutex<()>>,
}

impl Explainer {
    /// The reply for a flow, with what sinks have `written` and the text of its `rule`.
    pub async fn explain(
        &self,
        facts: &Facts,
        subject: &Subject,
        others: usize,
        mut written: Vec<Written>,
        rule: Option<String>,
    ) -> Reply {
        let states = facts.state.get().tasks.into_iter().enumerate();
        let questions = states.map(|(number, state)| Question {
            config: facts.config.of_task(number),
            state,
            // Records have the series of the first task.
            subject: subject.of_task(number, &facts.names[number], number == 0),
        });
        let tasks = match self.ask(questions.collect()).await {
            Ok(tasks) => tasks,
            Err((code, why)) => return Reply::refused(code, why),
        };
        written.extend(dscp(&facts.config, facts.is_live, &tasks));
        match explanation(tasks, &facts.config, written, others, rule) {
            Some(mut explained) => {
                // TCP that began mid-stream is left to fenxi.
                let is_kernels = facts.labels_in_kernel
                    && explained.flow.decided_by.as_deref() == Some(DecidedBy::Model.name())
                    && !explained.midstream;
                explained.place = is_kernels.then(|| Capture::Kernel.name().to_owned());
                Reply::ok(Body::Explained(Box::new(explained)))
            }
            None => Reply::refused(Code::NotHere, "there is no task"),
        }
    }

    /// Asks the models of all tasks, on one thread.
    async fn ask(&self, questions: Vec<Question>) -> Result<Vec<AskedTask>, (Code, String)> {
        let Ok(turn) = self.turn.clone().try_lock_owned() else {
            let why = "another flow is being explained; try again";
            return Err((Code::Busy, why.to_owned()));
        };
        let (done, asked) = oneshot::channel();
        let started = std::thread::Builder::new().name("explain".to_owned()).spawn(move || {
            let _turn = turn;
            // Fails if the request has timed out.
            let all = questions.into_iter().map(Question::ask);
            let _ = done.send(all.collect::<Result<Vec<_>, String>>());
        });
        if let Err(error) = started {
            let why = format!("cannot start a thread: {error}");
            return Err((Code::Busy, why));
        }
        match timeout(ASK_WITHIN, asked).await {
            Ok(Ok(asked)) => asked.map_err(|why| (Code::Invalid, why)),
            Ok(Err(_)) => {
                let why = "the thread that asks the model died";
                Err((Code::Busy, why.to_owned()))
            }
            Err(_) => {
                dataplane::leave_threads_behind();
                let why = "the model did not answer in time";
                Err((Code::TimedOut, why.to_owned()))
            }
        }
    }
}

struct Question {
    config: Config,
    state: TaskState,
    subject: Subject,
}

impl Question {
    /// Asks the model that answered, or else the one in use.
    fn ask(self) -> Result<AskedTask, String> {
        let Question { config, state, subject } = self;
        let is_answer = |it: &Decision| !matches!(it.decided_by, DecidedBy::Port | DecidedBy::Rule);
        let answered = subject.own.decision.filter(is_answer).map(|it| it.model);
        let by = answered.map_or(Some(&state.model), |generation| state.model_of(generation));
        let series = subject.own.series.as_ref();
        let asked = match by {
            Some(by) => ask(&config, &by.dir, series),
            None => Err("the model that answered is not known any more".to_owned()),
        };
        let asked = match asked {
            Ok(mut asked) => {
                if let Some(by) = by.filter(|by| asked.bundle.sha256() != by.sha256) {
                    asked.probabilities = Err(format!(
                        "{} holds another model than the one that answers; `fenxi ctl reload` \
                         takes it",
                        by.dir.display()
                    ));
                }
                asked
            }
            // The model in use has the same labels.
            Err(why) => Asked { probabilities: Err(why), ..ask(&config, &state.model.dir, None)? },
        };
        let model = match by {
            Some(ModelId { name, version, generation, .. }) => {
                format!("{name} {version}, generation {generation}")
            }
            None => format!("generation {}", answered.unwrap_or_default()),
        };
        Ok(AskedTask { asked, model, subject })
    }
}

fn dscp_text(code_point: u8) -> String {
    let name = Dscp::new(code_point).and_then(Dscp::name);
    name.map_or_else(|| code_point.to_string(), |name| format!("{code_point} {name}"))
}

/// What is written into packets; `None` in mode mark, where the sink reports it.
pub fn dscp(config: &Config, is_live: bool, tasks: &[AskedTask]) -> Option<Written> {
    let written = |what: &str, value: String, outcome: &str| {
        Some(Written { what: what.to_owned(), value, outcome: outcome.to_owned(), at: None })
    };
    match (is_live, config.io.mode) {
        (true, IoMode::Mark) => return None,
        (true, IoMode::Tap) => {
            let what = "nothing: mode tap sees copies of packets and changes none";
            return written("packets", String::new(), what);
        }
        _ => {}
    }
    // A rule comes before the label.
    let first = tasks.first().map(|task| &task.subject);
    let of_rule = first.filter(|it| it.rule.is_some());
    if let Some(action) = of_rule.and_then(|it| it.action) {
        if action.drop {
            return written("packets", String::new(), "dropped, as the flow's rule says");
        }
        if let Some(code_point) = action.dscp {
            return written("dscp", dscp_text(code_point), "packets leave with it now");
        }
    }
    if tasks.iter().all(|task| task.subject.own.decision.is_none()) {
        return written("dscp", String::new(), "nothing, since there is no label");
    }
    // The last task that gives one counts.
    let mut given = tasks.iter().enumerate().rev().filter_map(|(number, task)| {
        let class = usize::from(task.subject.own.decision?.class);
        let by_class = dscp_by_class(&config.of_task(number), &task.asked.bundle);
        by_class.unwrap_or_default().get(class).copied().flatten()
    });
    match given.next() {
        Some(code_point) => {
            let what = match is_live {
                true => "packets from the label on leave with it",
                false => "packets from the label on carry it, with --write",
            };
            written("dscp", dscp_text(code_point), what)
        }
        None => written("dscp", String::new(), "nothing: [tag.dscp] gives the label none"),
    }
}
