//! The sections `[observe]` and `[service.NAME]`.

use std::path::PathBuf;
use std::time::Duration;

use config::checked::Named;
use config::kind::{Kind, integer};
use config::{Config, Network, Setting, Settings, stored};
use flowmgr::{EGRESSES_MAX, SERVICES_MAX, ServiceFlows};

/// The longest name of a service: it becomes a label of metrics and the name of a file.
const NAME_MAX: usize = 32;
/// Networks or ports of a service, at most.
const LIST_MAX: usize = 64;

const PROTOCOLS: &[&str] = &["any", "tcp", "udp"];
const EGRESSES: &[&str] = &["address", "socket"];

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
    /// what is told apart: servers by address, or by address and port
    by_port: bool = live "egress", Kind::OneOf(EGRESSES), "\"address\"",
        "" => |s| Ok(s.get::<String>()? == "socket");
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

impl ServiceKeys {
    pub fn flows(&self) -> ServiceFlows {
        ServiceFlows { ports: self.ports.clone(), protocol: self.protocol, by_port: self.by_port }
    }
}

/// The services of a configuration.
pub fn services(config: &Config) -> Vec<Named<ServiceKeys>> {
    config.tables()
}
