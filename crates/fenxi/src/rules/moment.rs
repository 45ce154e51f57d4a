//! When rules count, whatever the flow: in their hours, while their profile is on, for hosts that
//! have a name.
//!
//! The policy thread looks at the moment ten times a second; where it opens or closes rules, all
//! flow workers get other gates, and flows are looked up again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dataplane::rules::Calendar;
use policy::hours::Hours;
use policy::rule::{Condition, Hosts};
use policy::{Facts, Gates, Moment, RuleNumber, Tuple};
use tracing::warn;

use super::changes::number_of;
use super::{Refused, Rules};
use crate::names::Names;
use crate::protocol::{Code, FlowQuery, NotAFlow, PolicyShown, ProfileRow};

/// Maximum rules that an explanation says are closed.
const CLOSED_MAX: usize = 8;

/// The profiles that are on, the moment, and the gates by both.
pub struct Standing {
    profiles: BTreeSet<String>,
    moment: Moment,
    gates: Arc<Gates>,
}

impl Rules {
    /// Goes on with the profiles and names of the rules before.
    pub fn follow(&mut self, before: &Rules) {
        self.profiles.clone_from(&before.profiles);
        self.unknown_hosts.clone_from(&before.unknown_hosts);
        self.know_hosts(before.hosts.clone());
    }

    /// Names of hosts are these from now on.
    pub fn know_hosts(&mut self, hosts: Names) {
        self.hosts = hosts;
        self.resolved = None;
        self.moment = self.now();
        self.set_gates();
    }

    /// Switches a profile; returns the number of its rules.
    ///
    /// # Errors
    /// No rule has it.
    pub fn switch(&mut self, profile: &str, on: bool) -> Result<u64, Refused> {
        let rows = self.profile_rows();
        let Some(row) = rows.iter().find(|row| row.name == profile) else {
            let near = policy::suggest(profile, rows.iter().map(|row| &*row.name));
            let known: Vec<&str> = rows.iter().map(|row| &*row.name).collect();
            let why = match known.is_empty() {
                true => "no rule has a profile; write profile = \"NAME\" into rules".to_owned(),
                false => format!(
                    "no rule has the profile \"{profile}\"; there are {}{near}",
                    known.join(", ")
                ),
            };
            return Err(Refused { code: Code::NotFound, why });
        };
        match on {
            true => self.profiles.insert(profile.to_owned()),
            false => self.profiles.remove(profile),
        };
        Ok(row.rules)
    }

    /// The profiles of all rules, by name.
    pub(super) fn profile_rows(&self) -> Vec<ProfileRow> {
        let mut rows: BTreeMap<&str, u64> = BTreeMap::new();
        let numbers = 0..self.store.rules().rules.len() as RuleNumber;
        for rule in numbers.filter(|rule| self.store.is_live(*rule)) {
            if let Some(name) = &self.store.rules().condition(rule).profile {
                *rows.entry(name).or_default() += 1;
            }
        }
        let row = |(name, rules): (&str, u64)| ProfileRow {
            name: name.to_owned(),
            on: self.profiles.contains(name),
            rules,
        };
        rows.into_iter().map(row).collect()
    }

    /// Opens and closes rules where the moment has changed; returns whether some did.
    pub fn open_and_close(&mut self) -> bool {
        let version = Some(self.hosts.snapshot().version);
        let (time, profiles) = (&self.moment.time, &self.moment.profiles);
        let is_same = *time == self.terms.clock.now() && *profiles == self.profiles;
        if is_same && self.resolved == version {
            return false;
        }
        let moment = self.now();
        let is_new = moment != self.moment;
        (self.moment, self.resolved) = (moment, version);
        self.warn_of_unknown_hosts();
        is_new && self.set_gates()
    }

    /// What [`Rules::put_back`] needs to undo a switch.
    pub fn standing(&self) -> Standing {
        Standing {
            profiles: self.profiles.clone(),
            moment: self.moment.clone(),
            gates: self.in_force.gates.clone(),
        }
    }

    /// Undoes what was switched, opened and closed since.
    pub fn put_back(&mut self, before: Standing) {
        let Standing { profiles, moment, gates } = before;
        (self.profiles, self.moment, self.in_force.gates) = (profiles, moment, gates);
        self.resolved = None;
    }

    /// Returns whether they changed.
    pub(super) fn set_gates(&mut self) -> bool {
        let gates = Gates::new(&self.store.rules().conditions, &self.moment);
        let is_new = *self.in_force.gates != gates;
        if is_new {
            self.in_force.gates = Arc::new(gates);
        }
        is_new
    }

    pub(super) fn now(&self) -> Moment {
        let snapshot = self.hosts.snapshot();
        let addresses = |name: &String| (name.clone(), snapshot.addresses_of(name));
        Moment {
            time: self.terms.clock.now(),
            profiles: self.profiles.clone(),
            hosts: self.host_names.iter().map(addresses).collect(),
        }
    }

    /// Says of each name that it stands for nobody, when that begins.
    fn warn_of_unknown_hosts(&mut self) {
        let unknown = self.moment.hosts.iter().filter(|(_, addresses)| addresses.is_empty());
        let unknown: BTreeSet<String> = unknown.map(|(name, _)| name.clone()).collect();
        for name in unknown.difference(&self.unknown_hosts) {
            warn!("rules: no host is called {name} now; rules for it count once there is one");
        }
        self.unknown_hosts = unknown;
    }

    pub(super) fn index_hosts(&mut self) {
        let conditions = self.store.rules().conditions.iter();
        self.host_names = conditions.flat_map(|it| &it.hosts.names).cloned().collect();
    }

    /// In a replay the packets' time counts, if some rule has hours.
    pub(super) fn calendar(&self) -> Option<Arc<Calendar>> {
        let conditions: Arc<[Condition]> = self.store.rules().conditions.clone().into();
        let has_hours = conditions.iter().any(|condition| !condition.hours.is_empty());
        let (clock, profiles) = (self.terms.clock.clone(), self.profiles.clone());
        (has_hours && self.terms.is_replay()).then(|| {
            Arc::new(move |time_us| {
                let profiles = profiles.clone();
                let moment = Moment { time: clock.at(time_us), profiles, ..Moment::default() };
                Gates::new(&conditions, &moment)
            }) as Arc<Calendar>
        })
    }

    /// Rules in whose box a flow is, but which count for no flow now, up to the rule of this
    /// number.
    pub fn closed_for(&self, flow: &str, before: Option<u64>) -> Result<PolicyShown, Refused> {
        let query: FlowQuery =
            flow.parse().map_err(|error: NotAFlow| Refused::invalid(error.to_string()))?;
        let set = self.store.rules();
        let tuple = match query {
            FlowQuery::Ends { protocol: Some(protocol), a, b } => Tuple::new(protocol, a, b, 0),
            _ => None,
        };
        let tuple =
            tuple.ok_or_else(|| Refused::invalid("rules need ends and protocol of a flow"))?;
        let found = policy::analysis::explain(set, &tuple, &[], &Facts::default(), &self.moment);
        let rules = found.matches.iter().map(|found| found.rule);
        let earlier = rules.take_while(|rule| Some(number_of(set, *rule)) != before);
        let rows = earlier.filter(|rule| self.store.is_live(*rule)).map(|rule| self.row(rule));
        let rows = rows.filter(|row| row.closed.is_some()).take(CLOSED_MAX).collect();
        Ok(PolicyShown { rows, ..self.shown(None, 0)? })
    }
}

/// That it is outside these hours.
pub fn outside(hours: &[Hours]) -> String {
    let hours: Vec<String> = hours.iter().map(Hours::to_string).collect();
    format!("outside its hours ({})", hours.join("; "))
}

/// Why a condition lets no flow in at the moment.
pub fn closed(condition: &Condition, moment: &Moment) -> Option<String> {
    if !moment.is_within(condition) {
        return Some(outside(&condition.hours));
    }
    if let Some(name) = condition.profile.as_ref().filter(|_| !moment.has_profile(condition)) {
        return Some(format!("profile {name} is off"));
    }
    let Hosts { prefixes, names } = &condition.hosts;
    let is_unknown = |name: &String| moment.hosts.get(name).is_none_or(Vec::is_empty);
    let is_nobody = prefixes.is_empty() && !names.is_empty() && names.iter().all(is_unknown);
    is_nobody.then(|| format!("no host is called {}", names.join(" or ")))
}
