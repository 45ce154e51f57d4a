//! The sections `[observe]` and `[service.NAME]`.

use std::path::PathBuf;
use std::time::Duration;

use config::checked::{DEFAULT_TASK, Named};
use config::kind::{Kind, integer};
use config::when::{Term, When, shortened};
use config::{Config, Network, Setting, Settings, Table, stored, suggest};
use flowmgr::{EGRESSES_MAX, SERVICES_MAX};

/// The longest name of a service: it becomes a label of metrics and the name of a file.
const NAME_MAX: usize = 32;
/// Networks or ports of a service, at most.
const LIST_MAX: usize = 64;

const PROTOCOLS: &[&str] = &["any", "tcp", "udp"];
const EGRESSES: &[&str] = &["address", "socket", "next-hop", "out-port"];

/// What is told apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Divided {
    #[default]
    Address,
    Socket,
    NextHop,
    OutPort,
}

config::section! {
    /// How the memory of services is handed out.
    pub struct Observe = One "observe";

    /// the folder of the files, one per service and flow worker: NAME.0, NAME.1 and so on
    folder: PathBuf = restart "folder", Kind::Text, "\"/run/fenxi/services\"", "path" => folder;
    /// the Unix socket that hands out memory, instead of files, to root, the user of the service,
    /// and the user and the group below
    socket: Option<PathBuf> = restart "socket", Kind::Text, "\"\"",
        "path, empty = files" => Setting::socket;
    /// who gets memory over the socket; a file would be the user's to truncate
    user: String = restart "user", Kind::Text, "\"\"",
        "user by name or number, empty = no other";
    /// the group that may read; the user of the service must be a member, unless it is root
    group: String = restart "group", Kind::Text, "\"\"",
        "group by name or number, empty = the group of the service";
    /// permissions of the files; nobody gets the right to write
    mode: u32 = restart "mode", Kind::Text, "\"0640\"", "octal" => mode;
    /// counters are published at most this often; an idle worker publishes at once
    interval: Duration = restart "interval_ms", integer(1, 1000), "5",
        "milliseconds" => |s| Ok(Duration::from_millis(s.get()?));
}

config::section! {
    /// A service, whose servers are observed.
    pub struct ServiceKeys = Named "service", checked by check;

    /// networks of its servers; of all services, the longest prefix wins
    servers: Vec<Network> = live "servers", Kind::TextList { least: 1 }, "[\"10.0.0.0/24\"]",
        "" => |s| s.list(|text| text.parse());
    /// ports of its servers
    ports: Vec<u16> = live "ports",
        Kind::IntegerList { least: 0, min: 1, max: 65_535, most: LIST_MAX }, "[]", "[] = all"
        => |s| Ok(s.get::<Vec<usize>>()?.into_iter().map(|port| port as u16).collect());
    /// protocol of its flows
    protocol: Option<u8> = live "protocol", Kind::OneOf(PROTOCOLS), "\"any\"", "" => protocol;
    /// which of these flows, by in_port, vlan, rule and TASK.label, such as vlan = 10 and rule =
    /// voice; by label, a flow counts from when it has that
    when: When<String> = live "when", Kind::Text, "\"\"",
        "terms joined by and, empty = all" => when;
    /// what is told apart: servers by address, or by address and port; the neighbours that packets
    /// of clients go to; mode inline: the interfaces that they leave by
    egress: Divided = live "egress", Kind::OneOf(EGRESSES), "\"address\"", "" => divided;
    /// how many servers have figures of their own, the busiest; all others are one
    egresses: usize = live "egresses", integer(1, EGRESSES_MAX as i64), "64", "servers";
}

fn folder(setting: &Setting) -> Result<PathBuf, String> {
    setting.file()?.ok_or_else(|| "expected the path of a folder".to_owned())
}

fn mode(setting: &Setting) -> Result<u32, String> {
    let mode = u32::from_str_radix(&setting.get::<String>()?, 8);
    mode.ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "expected permissions such as \"0640\"".to_owned())
}

fn protocol(setting: &Setting) -> Result<Option<u8>, String> {
    Ok(match setting.get::<String>()?.as_str() {
        "tcp" => Some(flowmgr::wire::TCP),
        "udp" => Some(flowmgr::wire::UDP),
        _ => None,
    })
}

fn divided(setting: &Setting) -> Result<Divided, String> {
    Ok(match setting.get::<String>()?.as_str() {
        "socket" => Divided::Socket,
        "next-hop" => Divided::NextHop,
        "out-port" => Divided::OutPort,
        _ => Divided::Address,
    })
}

fn when(setting: &Setting) -> Result<When<String>, String> {
    let when = When::parse(&setting.get::<String>()?).map_err(|error| error.to_string())?;
    let wrong = when.terms.iter().find_map(|term| {
        let cure = match term {
            Term::Port(_) => "set ports instead",
            Term::Protocol(_) => "set protocol instead",
            Term::InPort(_) | Term::Vlan(_) | Term::Rule(_) | Term::Label { .. } => return None,
            _ => "leave the term out",
        };
        let term = shortened(&term.to_string());
        Some(format!("{term}: a service takes in_port, vlan, rule and TASK.label; {cure}"))
    });
    wrong.map_or(Ok(when), Err)
}

/// What a service's conditions and egress name, and the rest of the configuration does not have.
fn check_names(settings: &Settings, table: &Table, problems: &mut Vec<String>) {
    let (origin, name) = (&table.origin, &table.name);
    let text = |key: &str| table.get(key).and_then(|it| it.value.as_str()).unwrap_or_default();
    if text("egress") == "out-port" && settings.word("io.mode") != "inline" {
        problems.push(format!(
            "{origin}: service.{name}.egress: out-port: only mode inline knows where packets \
             leave, and io.mode is \"{}\"; set another egress",
            settings.word("io.mode")
        ));
    }
    let interfaces = settings.setting("io.interfaces").value.as_array();
    let interfaces: Vec<&str> =
        interfaces.into_iter().flatten().filter_map(|it| it.as_str()).collect();
    let mut tasks: Vec<&str> = settings.tables("task").map(|task| task.name.as_str()).collect();
    if tasks.is_empty() {
        tasks.push(DEFAULT_TASK);
    }
    for term in When::parse(text("when")).unwrap_or_default().terms {
        let (what, wanted, known) = match &term {
            Term::InPort(names) if !interfaces.is_empty() => ("interface", names, &interfaces),
            Term::Label { task, .. } => ("task", &vec![task.clone()], &tasks),
            _ => continue,
        };
        let Some(unknown) = wanted.iter().find(|it| !known.contains(&it.as_str())) else {
            continue;
        };
        problems.push(format!(
            "{origin}: service.{name}.when: {}: there is no {what} {}; there is {}{}",
            shortened(&term.to_string()),
            shortened(unknown),
            known.join(", "),
            suggest(unknown, known.iter().copied())
        ));
    }
}

fn check(settings: &Settings, problems: &mut Vec<String>) {
    let tables = settings.tables("service");
    if let Some(table) = tables.clone().nth(SERVICES_MAX) {
        problems.push(format!(
            "{}: service.{}: expected {SERVICES_MAX} services at most; leave some out",
            table.origin, table.name
        ));
    }
    for table in tables.filter(|table| !table.refused) {
        let (origin, name) = (&table.origin, &table.name);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !(1..=NAME_MAX).contains(&name.len()) || !name.chars().all(is_word) {
            problems.push(format!(
                "{origin}: service.{name}: expected a name of 1 to {NAME_MAX} letters, digits, - \
                 and _"
            ));
        }
        check_names(settings, table, problems);
        match table.get("servers").and_then(|servers| servers.value.as_array()) {
            None => problems.push(format!(
                "{origin}: service.{name}.servers: is missing; expected as in servers = \
                 [\"10.0.0.0/24\"]"
            )),
            Some(servers) if servers.len() > LIST_MAX => problems.push(format!(
                "{origin}: service.{name}.servers: expected {LIST_MAX} networks at most; make a \
                 second service of the rest"
            )),
            Some(_) => {}
        }
    }
    stored::<ServiceKeys>(settings, problems);
}

/// The services of a configuration.
pub fn services(config: &Config) -> Vec<Named<ServiceKeys>> {
    config.tables()
}
