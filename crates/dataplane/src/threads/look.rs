//! How the control thread looks at the flows of a running flow worker.
//!
//! A box with room for rows goes to and fro, as snapshots do. The worker fills it between its
//! bursts, a few flows at a time, and sends it back once it is full or the table is at its end; the
//! control thread takes the rows and sends the box again until it has seen all. The worker neither
//! waits nor allocates, and while nobody looks, [`LookPort::go_on`] is one load.

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use flowmgr::{CHAIN_FLOWS_MAX, FlowDetail, FlowLook, Found, Wanted};

use crate::opening::inline::FlowManager;
use crate::threads::rules::{FlowRules, RuleTotals};

/// Flows that a worker looks at between two bursts: some ten microseconds' worth.
const FLOWS_BUSY: usize = 4 * CHAIN_FLOWS_MAX;
/// The same in a round without packets.
const FLOWS_IDLE: usize = 32 * CHAIN_FLOWS_MAX;
/// Rows that a box has room for.
const ROWS: usize = 4096;

/// What the control thread wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// All flows.
    All,
    /// One flow.
    Flow(Wanted),
}

/// The box.
pub struct Look {
    question: Question,
    /// The bucket to go on from; `None`: the table has been seen to its end, or the flow was found.
    next: Option<u32>,
    /// Flows, for [`Question::All`].
    pub rows: Vec<FlowLook>,
    /// The flow, for [`Question::Flow`].
    pub detail: Option<FlowDetail>,
    /// The worker's clock (packet time) at the end of this portion, µs.
    pub now_us: i64,
    /// By how much wall time is ahead of it, µs.
    pub ahead_us: i64,
    /// For [`Question::All`]: what rules have counted, also of the flows seen so far, what no
    /// record has yet.
    pub rules: RuleTotals,
}

impl Look {
    fn new() -> Box<Look> {
        Box::new(Look {
            question: Question::All,
            next: None,
            rows: Vec::with_capacity(ROWS),
            detail: None,
            now_us: 0,
            ahead_us: 0,
            rules: RuleTotals::with_capacity(),
        })
    }

    /// Whether everything asked for has been seen.
    pub fn is_done(&self) -> bool {
        self.next.is_none()
    }
}

/// The worker's end.
pub struct LookPort {
    asked: Receiver<Box<Look>>,
    answers: Sender<Box<Look>>,
    /// The look under way.
    current: Option<Box<Look>>,
}

/// The control thread's end.
pub struct Looker {
    asks: Sender<Box<Look>>,
    answers: Receiver<Box<Look>>,
    /// Here while nobody looks.
    free: Option<Box<Look>>,
}

/// What came of waiting for a portion.
pub enum Portion {
    /// Nothing yet.
    Nothing,
    /// Rows, or the flow. Send it on with [`Looker::go_on`], or keep it with [`Looker::finish`].
    Here(Box<Look>),
    /// The worker has ended, and with it its table.
    Ended,
}

/// Both ends, with all memory that they will need.
pub fn looks() -> (Looker, LookPort) {
    let (asks, asked) = bounded(1);
    let (answers, answered) = bounded(1);
    let looker = Looker { asks, answers: answered, free: Some(Look::new()) };
    let port = LookPort { asked, answers, current: None };
    (looker, port)
}

impl LookPort {
    /// Whether a look is under way, so that the worker should not sleep long.
    pub fn is_looking(&self) -> bool {
        self.current.is_some()
    }

    /// Between two bursts: goes on with the look, if there is one. `ahead_us` is how far wall time
    /// is ahead of packet time. Rows name a rule by its order, which rule to be written it was: its
    /// number may be another's later.
    pub fn go_on(
        &mut self,
        manager: &FlowManager,
        ahead_us: i64,
        is_idle: bool,
        rules: Option<&dyn FlowRules>,
    ) {
        if self.current.is_none() && self.asked.is_empty() {
            return;
        }
        let current = self.current.take().or_else(|| self.asked.try_recv().ok());
        let Some(mut look) = current else {
            return;
        };
        let most = match is_idle {
            true => FLOWS_IDLE,
            false => FLOWS_BUSY,
        };
        let from = look.next.unwrap_or(0);
        let order = |rule| rules?.in_force().policy.order(rule);
        match look.question {
            Question::All => {
                let before = look.rows.len();
                look.next = manager.read_flows(from, most, &mut look.rows);
                if let Some(rules) = rules {
                    look.rules.add(rules, from == 0, &look.rows[before..]);
                }
                for row in &mut look.rows[before..] {
                    row.rule = row.rule.and_then(order);
                }
            }
            Question::Flow(wanted) => match manager.look_for(from, most, &wanted) {
                Found::Flow(mut detail) => {
                    detail.look.rule = detail.look.rule.and_then(order);
                    (look.next, look.detail) = (None, Some(detail));
                }
                Found::NotYet { next } => look.next = Some(next),
                Found::Nowhere => look.next = None,
            },
        }
        let is_full = look.rows.len() + CHAIN_FLOWS_MAX > look.rows.capacity();
        if look.next.is_some() && !is_full {
            self.current = Some(look);
            return;
        }
        look.now_us = manager.packet_time_us();
        look.ahead_us = ahead_us;
        // There is room, since there is one box; nobody minds if the other side has gone.
        let _ = self.answers.try_send(look);
    }
}

impl Looker {
    /// Begins a look. False while an earlier one is under way that nobody waited for.
    pub fn begin(&mut self, question: Question) -> bool {
        if self.free.is_none()
            && let Ok(late) = self.answers.try_recv()
        {
            self.free = Some(late);
        }
        let Some(mut look) = self.free.take() else {
            return false;
        };
        look.question = question;
        look.next = None;
        self.send(look);
        true
    }

    /// Whether a portion is here. Never waits.
    pub fn poll(&self) -> Portion {
        match self.answers.try_recv() {
            Ok(look) => Portion::Here(look),
            Err(TryRecvError::Empty) => Portion::Nothing,
            Err(TryRecvError::Disconnected) => Portion::Ended,
        }
    }

    /// Sends the box again for the next portion.
    pub fn go_on(&mut self, look: Box<Look>) {
        self.send(look);
    }

    /// Keeps the box for the next look.
    pub fn finish(&mut self, look: Box<Look>) {
        self.free = Some(look);
    }

    fn send(&mut self, mut look: Box<Look>) {
        look.rows.clear();
        look.detail = None;
        // There is room for the only box; if the worker has ended, `poll` says so.
        let _ = self.asks.try_send(look);
    }
}
