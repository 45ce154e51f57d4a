//! Rules for the packets that are counted. `rules.classbench` is what `fenxi-lab generate rules
//! --rules 2000` wrote.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use dataplane::rules::{FlowRules, RulesInForce, RulesUpdate};
use flowmgr::{Fate, Manager, Packet, RuleQuestion, RulesChange};
use policy::{Dscp, Filter, Names, Policy, RuleNumber, RuleSet};
use rulefiles::{Format, Options};

/// The DSCP of all rules.
const DSCP: u8 = 10;

/// Rules, and what flows have as their tuples: each lies in a rule, as the frames' own would not.
pub struct Rules {
    looked_up: Box<dyn FlowRules>,
    filters: Vec<Filter<u32>>,
    questions: Vec<RuleQuestion>,
}

impl Rules {
    /// They are in force from now on.
    pub fn begin(manager: &mut Manager) -> Rules {
        let set = read();
        let policy = Policy::new(&set, &Names::default()).expect("rules without names");
        let rules = RulesInForce::of(Arc::new(policy), 0);
        let update = RulesUpdate::new(rules, manager.max_flows(), false).expect("memory for rules");
        let (looked_up, mut change) = update.begin();
        manager.change_rules(&mut change);
        Rules { looked_up, filters: set.v4, questions: Vec::with_capacity(flowmgr::BURST_MAX) }
    }

    /// All flows have to be looked up again.
    pub fn change(&mut self, manager: &mut Manager) {
        manager.change_rules(&mut RulesChange::default());
    }

    /// Answers the questions of a burst, as a flow worker does.
    pub fn look_up(
        &mut self,
        manager: &mut Manager,
        data: &mut [u8],
        packets: &[Packet],
        fates: &mut Vec<Fate>,
    ) {
        while !manager.rule_questions().is_empty() {
            self.questions.clear();
            let filters = &self.filters;
            let questions = manager.rule_questions().iter();
            self.questions.extend(questions.map(|question| within(question, filters)));
            let answers = self.looked_up.answer(&self.questions, None, &mut |_| {});
            assert!(answers.iter().all(|answer| answer.rule.is_some()));
            manager.answer_rules(answers, data, packets, 0, fates);
        }
    }
}

/// The question as if the flow were in a filter, always the same.
fn within(question: &RuleQuestion, filters: &[Filter<u32>]) -> RuleQuestion {
    let filter = &filters[question.flow_id as usize * 7 % filters.len()];
    let end = |address: u32, port| (Ipv4Addr::from(address).into(), port);
    RuleQuestion {
        protocol: filter.protocol.unwrap_or(17),
        source: end(filter.source, filter.source_ports.first),
        destination: end(filter.destination, filter.destination_ports.first),
        ..*question
    }
}

fn read() -> RuleSet {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions/rules.classbench");
    let options = Options { format: Some(Format::ClassBench), ..Options::default() };
    let mut set = rulefiles::read(&path, &options).expect("a file of rules").set;
    for rule in 0..set.rules.len() as RuleNumber {
        let mut action = set.action(rule).clone();
        action.dscp = Dscp::new(DSCP);
        set.set_action(rule, action);
    }
    set
}
