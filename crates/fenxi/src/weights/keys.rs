//! The tables `[weights.NAME]`, and what their keys mean on this machine.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use config::checked::{IoMode, Named};
use config::kind::{Kind, float, integer};
use config::{Config, Keyed, Setting, Settings, Table, stored, suggest};
use dataplane::Error;
use dataplane::server_actions::ServerActions;
use netfilter::nft_set::SetName;
use netfilter::slots::{SLOTS_MAX, Slots};
use netfilter::writer::StartError;
use observe::Action;
use policy::Dscp;

use crate::access::number_in;

config::section! {
    /// A map of servers whose weights a program gives.
    pub struct Weights = Named "weights", checked by check;

    /// the map of slots, which must exist
    map: Option<SetName> = restart "map", Kind::Text, "\"ip balance servers\"",
        "family, table and map" => map;
    /// the servers with their static weights, which apply while no program gives valid ones
    servers: Vec<(SocketAddr, f64)> = restart "servers", Kind::Map(&float(0.0, 1e9)),
        "{}", "address:port = share of new connections" => servers;
    /// the socket on which one program at a time gets the memory for its weights
    socket: Option<PathBuf> = restart "socket", Kind::Text, "\"/run/fenxi/web.weights\"", "path"
        => Setting::socket;
    /// the user whose programs may give weights, besides root
    owner: Option<String> = restart "owner", Kind::Text, "\"\"",
        "name or number, empty = only root" => Setting::word;
    /// what the program may say, besides, of flows that begin to a server: mode mark: mark, bits
    /// within mark.mask; inline, or with mark.as = "dscp": dscp; the only task that is asked: task
    actions: Vec<String> = restart "actions", Kind::TextList { least: 0 }, "[]",
        "mark, dscp and task, [] = nothing" => kinds;
    /// how many slots the map has: what its rule has behind mod
    slots: usize = restart "slots", integer(1, SLOTS_MAX as i64), "256", "slots";
}

/// Keys without a default.
const NEEDED: usize = 3;

fn map(setting: &Setting) -> Result<Option<SetName>, String> {
    setting.get::<String>()?.parse().map(Some)
}

fn kinds(setting: &Setting) -> Result<Vec<String>, String> {
    setting.list(|kind| match Action::KINDS.contains(&kind) {
        true => Ok(kind.to_owned()),
        false => Err(format!(
            "found {kind}, expected mark, dscp or task{}",
            suggest(kind, Action::KINDS)
        )),
    })
}

/// Actions that the mode has no use for.
fn check_actions(settings: &Settings, table: &Table, problems: &mut Vec<String>) {
    let actions = table.get("actions").and_then(|it| it.value.as_array());
    let mode = settings.word("io.mode");
    for kind in actions.into_iter().flatten().filter_map(|kind| kind.as_str()) {
        let needs = match (kind, mode, settings.word("mark.as")) {
            ("mark", "mark", _) | ("dscp", "inline", _) | ("dscp", "mark", "dscp") => continue,
            ("mark", ..) => "io.mode = \"mark\"",
            ("dscp", "mark", _) => "mark.as = \"dscp\"",
            ("dscp", ..) => "io.mode = \"inline\"",
            _ => continue,
        };
        let (origin, name) = (&table.origin, &table.name);
        problems.push(format!(
            "{origin}: weights.{name}.actions: {kind}: no effect without {needs}; set it, or leave \
             {kind} out"
        ));
    }
}

fn servers(setting: &Setting) -> Result<Vec<(SocketAddr, f64)>, String> {
    let servers = setting.rows(|name, weight: f64, _| match name.parse() {
        Ok(server) => Ok((server, weight)),
        Err(_) => Err(format!("\"{name}\" is no server; write as in \"10.0.0.1:80\" = 1")),
    })?;
    let servers: Vec<(SocketAddr, f64)> = servers.into_iter().collect::<Result<_, _>>()?;
    if !servers.is_empty() && servers.iter().all(|(_, weight)| *weight == 0.0) {
        return Err("every weight is 0; give some server more".to_owned());
    }
    Ok(servers)
}

fn check(settings: &Settings, problems: &mut Vec<String>) {
    let mut maps = BTreeSet::new();
    let mut acted_on = BTreeSet::new();
    for table in settings.tables("weights").filter(|table| !table.refused) {
        let (origin, name) = (&table.origin, &table.name);
        for key in &Weights::SECTION.keys[..NEEDED] {
            let is_empty = |setting: &Setting| {
                setting.entries.is_empty() && setting.value.as_str().unwrap_or_default().is_empty()
            };
            if table.get(key.name()).is_none_or(is_empty) {
                let (key, example) = match key.name() {
                    "servers" => ("servers", "{ \"10.0.0.1:80\" = 1, \"10.0.0.2:80\" = 1 }"),
                    name => (name, key.default),
                };
                problems.push(format!(
                    "{origin}: weights.{name}.{key}: is missing; expected as in {key} = {example}"
                ));
            }
        }
        check_actions(settings, table, problems);
        let acts = table.get("actions").and_then(|it| it.value.as_array());
        let servers = table.get("servers").filter(|_| acts.is_some_and(|it| !it.is_empty()));
        let servers = servers.into_iter().flat_map(|servers| servers.entries.keys());
        let servers = servers.filter_map(|server| server.parse::<SocketAddr>().ok());
        let mut servers: Vec<_> = servers.collect();
        servers.retain(|server| !acted_on.insert(*server));
        if let Some(server) = servers.first() {
            problems.push(format!(
                "{origin}: weights.{name}.servers: another table has actions for {server}, too; \
                 leave actions out of one of them"
            ));
        }
        let map = table.get("map").and_then(|map| map.value.as_str());
        if let Some(map) = map.filter(|map| !maps.insert(map.to_owned())) {
            problems.push(format!(
                "{origin}: weights.{name}.map: another table has the map {map}, too; name another"
            ));
        }
    }
    stored::<Weights>(settings, problems);
}

impl Weights {
    /// The kinds of actions that programs may give, as [`Action::kinds`] has them.
    pub fn kinds(&self) -> u8 {
        let bits = Action::KINDS.iter().enumerate().map(|(bit, kind)| {
            match self.actions.iter().any(|it| it == kind) {
                true => 1 << bit,
                false => 0,
            }
        });
        bits.sum()
    }
}

/// Checks that a reload leaves in place what programs are held to.
///
/// # Errors
/// `mark.mask` changes, within which programs mark connections.
pub fn check_change(now: &Config, next: &Config) -> Result<(), Error> {
    let is_other = next.io.mode == IoMode::Mark && now.mark.mask != next.mark.mask;
    let tables = tables(next);
    let mut actions = tables.iter().flat_map(|table| &table.keys.actions);
    match is_other && actions.any(|kind| kind != "task") {
        true => Err(Error::Config(
            "mark.mask: weights.NAME.actions mark by it; restart fenxi to change that".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Whether some program may act on flows.
pub fn acts(config: &Config) -> bool {
    tables(config).iter().any(|table| !table.keys.actions.is_empty())
}

/// The servers to which flows may get actions, if there are some.
pub fn actions(config: &Config) -> Option<Arc<ServerActions>> {
    let tables = tables(config).into_iter().filter(|table| !table.keys.actions.is_empty());
    let servers = tables.flat_map(|table| table.keys.servers);
    let servers: Vec<_> = servers.map(|(server, _)| (server.ip(), server.port())).collect();
    let mask = (config.io.mode == IoMode::Mark).then_some(config.mark.mask);
    (!servers.is_empty()).then(|| Arc::new(ServerActions::new(servers.into_iter(), mask)))
}

/// Whether an action that a program gives is one that it may give in this run.
pub fn fits(action: Action, kinds: u8, config: &Config) -> bool {
    let mask = config.mark.mask;
    action.kinds() & !kinds == 0
        && action.mark.is_none_or(|bits| bits != 0 && bits & !mask == 0)
        && action.dscp.is_none_or(|dscp| dscp <= Dscp::MAX)
        // As for rules: the DSCP stands in the mark.
        && (action.mark.is_none() || action.dscp.is_none())
        && action.task.is_none_or(|task| usize::from(task) < config.tasks.len())
}

pub fn tables(config: &Config) -> Vec<Named<Weights>> {
    config.tables()
}

/// Opens the map, in the network namespace of the calling thread.
pub fn open_map(table: &Named<Weights>) -> Result<Slots, StartError> {
    let keys = &table.keys;
    let servers: Vec<SocketAddr> = keys.servers.iter().map(|(server, _)| *server).collect();
    let missing = || StartError::Unfit("the map is missing".to_owned());
    let opened = keys.map.as_ref().ok_or_else(missing);
    opened
        .and_then(|map| Slots::open(map, keys.slots, &servers))
        .map_err(|error| named(table, error))
}

/// An error of this table.
pub fn named(table: &Named<Weights>, error: StartError) -> StartError {
    match error {
        StartError::Unfit(why) => {
            StartError::Unfit(format!("{}: weights.{}: {why}", table.origin, table.name))
        }
        other => other,
    }
}

/// The number of a user of this machine.
pub fn user(name: &str) -> Option<u32> {
    number_in("/etc/passwd", name)
}

#[cfg(test)]
mod tests {
    use config::Sources;

    use super::*;
    use crate::sinks::known;

    fn load(text: &str) -> Result<Vec<Named<Weights>>, String> {
        config(text).map(|config| config.tables())
    }

    fn config(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        let loaded = known(Sources::named(Some(&file), &[])).load();
        loaded.map(|loaded| loaded.config).map_err(|errors| errors.to_string())
    }

    const TABLE: &str = "[weights.web]\nmap = \"ip balance servers\"\nsocket = \"/run/w\"\n";

    #[test]
    fn a_table_has_servers_with_weights() {
        let servers = "servers = { \"10.0.0.2:80\" = 0.5, \"[fd00::1]:80\" = 2 }";
        let tables = load(&format!("{TABLE}{servers}")).unwrap();
        let Weights { servers, owner, slots, .. } = &tables[0].keys;
        let expected = [("10.0.0.2:80", 0.5), ("[fd00::1]:80", 2.0)];
        assert_eq!(*servers, expected.map(|(server, weight)| (server.parse().unwrap(), weight)));
        assert_eq!((owner, *slots), (&None, 256));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let two = TABLE.replace("web", "other") + "servers = { \"10.0.0.1:80\" = 1 }\n" + TABLE;
        let with = |servers: &str| format!("{TABLE}servers = {{ {servers} }}");
        let wrong = [
            ("[weights.web]".to_owned(), "c.toml:1: weights.web.map: is missing"),
            (with(""), "weights.web.servers: is missing; expected as in servers = { \"10"),
            (with("\"10.0.0.1\" = 1"), "weights.web.servers: \"10.0.0.1\" is no server"),
            (with("\"10.0.0.1:80\" = -1"), "found -1"),
            (with("\"10.0.0.1:80\" = 0"), "every weight is 0"),
            (two.clone() + "servers = { \"10.0.0.1:80\" = 1 }", "another table has the map"),
            (
                two.replace("servers =", "actions = [\"task\"]\nservers =")
                    + "actions = [\"task\"]\nservers = { \"10.0.0.1:80\" = 1 }",
                "web.servers: another table has actions for 10.0.0.1:80",
            ),
        ];
        for (text, says) in wrong {
            let error = load(&text).expect_err(&text);
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn an_action_is_one_that_the_program_may_give() {
        let config = config("").unwrap();
        let has = |mark, dscp, kinds| fits(Action { mark, dscp, task: None }, kinds, &config);
        let bits = Some(0x100_0000);
        assert!(has(bits, None, 3) && has(None, Some(46), 3) && has(None, None, 0));
        assert!(!has(bits, Some(46), 3), "one place for both");
        assert!(!has(bits, None, 2) && !has(Some(1), None, 3) && !has(None, Some(64), 3));
    }

    #[test]
    fn a_reload_leaves_the_bits_by_which_programs_mark() {
        for (kind, is_refused) in [("task", false), ("mark", true)] {
            let table =
                format!("{TABLE}servers = {{ \"10.0.0.1:80\" = 1 }}\nactions = [\"{kind}\"]");
            let now = config(&format!("[io]\nmode = \"mark\"\n{table}")).unwrap();
            let mut next = now.clone();
            assert!(check_change(&now, &next).is_ok());
            next.mark.mask = 0xff;
            assert_eq!(check_change(&now, &next).is_err(), is_refused, "{kind}");
        }
    }

    #[test]
    fn root_is_a_user() {
        assert_eq!(user("root"), Some(0));
        assert_eq!(user("nobody at all"), None);
    }
}
