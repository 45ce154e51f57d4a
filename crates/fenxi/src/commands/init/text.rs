//! The texts: the configuration, and the commands that come next.

use std::path::Path;

use config::sources::DEFAULT_FILE;
use toml::Value;

use super::{Answers, Link, Service, Want};
use crate::proc::Machine;

/// fenxi's part of the shaper, for the folder `conf.d`.
const SHAPER: &str = include_str!("../../../../../examples/shaper/shaper.toml");

/// Folders of the service for records and sockets, which the package makes. Without them, both are
/// next to the configuration.
const RECORDS: &str = "/var/lib/fenxi/";
const SOCKETS: &str = "/run/fenxi";

const SOCKET: &str = "fenxi.sock";

/// Why rates are not the link's.
const BELOW: &str = "5 % below the link's speed";

/// A full link of 10 Gbit/s has 57,600 new flows per second (the mix of MEASUREMENTS.md), which
/// stay for 30 s.
const FLOWS_PER_GBIT: u64 = 57_600 * 30 / 10;

/// Bounds of the flow table: 28 MiB, so that a flood does not fill it at once; and 1.7 GiB.
const FLOWS: [u64; 2] = [1 << 16, 1 << 22];

/// Bytes of memory for each flow: the table takes a third of them. Where a link has more flows, the
/// default stays, which is by memory.
const FLOW_SHARE: u64 = 1024;

pub fn configuration(answers: &Answers, memory: Option<u64>) -> String {
    let Answers { want, interface, link } = answers;
    let (what, mode) = match want {
        Want::See => ("To see what is on the network", "tap"),
        Want::Shape => ("To shape a link", "mark"),
        Want::Export => ("To export records", "tap"),
    };
    let interface = Value::String(interface.clone());
    let mut text = format!(
        "# {what}. A key that is left out has its default; fenxi.toml(5) explains every \
        key.\n\n[io]\nmode = \"{mode}\"\ninterfaces = [{interface}]\n"
    );
    if *want != Want::Shape {
        text += "# A mirror port carries frames for other machines.\npromiscuous = true\n";
    }
    let flows = max_flows(*link);
    if memory.is_none_or(|memory| flows * FLOW_SHARE <= memory) {
        text += &format!("\n[flow]\n# Enough for {link}.\nmax_flows = {flows}\n");
    }
    match want {
        Want::See => {}
        Want::Shape => {
            // What stands before is its own [io].
            let own = SHAPER.find("\n[mark]").map_or("", |at| &SHAPER[at..]);
            text += &own
                .replace(
                    "From the folder of this file.",
                    "Which connections are calls, and which big.",
                )
                .replace("../shaper/", "shaper/");
        }
        Want::Export => {
            let folder = if Path::new(RECORDS).is_dir() { RECORDS } else { "" };
            text += &format!(
                "\n[records]\n# A line of JSON for each flow and label; at most five files of 256 \
                MiB.\npath = \"{folder}flows.jsonl\"\n\n# A collector of IPFIX (NetFlow v10).\n\
                # [ipfix]\n# to = \"udp://192.0.2.1:4739\"\n"
            );
        }
    }
    if cfg!(feature = "history") && Path::new(RECORDS).is_dir() {
        text += &format!(
            "\n[history]\n# Sums per hour, for `fenxi report` and the page /history; 64 MiB and \
             400 days at most.\npath = \"{RECORDS}history\"\n"
        );
    }
    if !Path::new(SOCKETS).is_dir() {
        text += &format!(
            "\n[control]\n# For `fenxi top` and `fenxi ctl`, option --socket.\nsocket = \
            \"{SOCKET}\"\n"
        );
    }
    text
}

fn max_flows(link: Link) -> u64 {
    let flows = (link.down + link.up) * FLOWS_PER_GBIT / 1_000_000;
    flows.next_power_of_two().clamp(FLOWS[0], FLOWS[1])
}

/// The two sides of a router, as far as they are known.
pub struct Roles {
    inner: Option<String>,
    uplink: Option<String>,
}

impl Roles {
    /// The uplink has the default route. The inner interface is the one that was named; if that is
    /// the uplink, the only other one.
    pub fn find(answers: &Answers, machine: &Machine, known: &[String]) -> Roles {
        let named = &answers.interface;
        let uplink = default_route(machine);
        let inner = match (uplink.as_ref() == Some(named), known) {
            (false, _) => Some(named.clone()),
            (true, [one, other]) => Some((if one == named { other } else { one }).clone()),
            (true, _) => None,
        };
        Roles { inner, uplink }
    }
}

/// The interface of the default route of IPv4.
pub fn default_route(machine: &Machine) -> Option<String> {
    let routes = machine.text("proc/net/route")?;
    let mut routes = routes.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Interface, destination, gateway, flags, …, mask.
    routes.find_map(|fields| match fields.as_slice() {
        [name, "00000000", _, _, _, _, _, "00000000", ..] => Some((*name).to_owned()),
        _ => None,
    })
}

/// The unit that shapes both sides from each boot on; `None` if a side is not known.
pub fn shaper(answers: &Answers, file: &Path, roles: &Roles) -> Option<String> {
    let Roles { inner: Some(inner), uplink: Some(uplink) } = roles else { return None };
    let [up, down] = shaped(answers.link, file, uplink, inner);
    let script = script(file);
    Some(format!(
        "[Unit]\nDescription=calls first, on {uplink} and {inner}\n\
         Wants=network-online.target\nAfter=network-online.target\n\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\n\
         # {BELOW}, so that packets wait here and not in the modem.\n\
         ExecStart={up}\nExecStart={down}\n\
         ExecStop={script} down {uplink}\nExecStop={script} down {inner}\n\
         # An interface may come later, as one of PPP does.\nRestart=on-failure\nRestartSec=10\n\
         \n[Install]\nWantedBy=multi-user.target\n"
    ))
}

/// The commands that shape uploads and downloads.
fn shaped(link: Link, file: &Path, uplink: &str, inner: &str) -> [String; 2] {
    let script = script(file);
    let up = |side: &str, kbit: u64| format!("{script} up {side} {}kbit", kbit * 95 / 100);
    [up(uplink, link.up), up(inner, link.down)]
}

fn script(file: &Path) -> String {
    file.with_file_name("shaper").join("shaper").display().to_string()
}

/// The commands that come next, one on a line.
pub fn next(answers: &Answers, file: &Path, roles: &Roles, service: Option<&Service>) -> String {
    let path = file.display();
    let of = match file == Path::new(DEFAULT_FILE) {
        true => String::new(),
        false => format!(" --config {path}"),
    };
    let mut lines = vec![format!("fenxi check{of}")];
    let is_shaped = service.is_some_and(|service| service.has_shaper);
    match service {
        Some(Service { unit, shaper, had_shaper, .. }) => {
            // systemd still knows the old unit, which names the interfaces to free; `enable` loads
            // the new one.
            if *had_shaper {
                let end = if is_shaped { "stop" } else { "disable --now" };
                lines.push(format!("systemctl {end} {shaper}"));
            }
            let shaper = if is_shaped { format!(" {shaper}") } else { String::new() };
            lines.push(format!(
                "systemctl enable {unit}{shaper} && systemctl restart {unit}{shaper}"
            ));
        }
        None => lines.push(format!("fenxi run{of}")),
    }
    if answers.want == Want::Shape && !is_shaped {
        let or =
            |side: &Option<String>, unknown: &str| side.as_deref().unwrap_or(unknown).to_owned();
        let (uplink, inner) = (or(&roles.uplink, "UPLINK"), or(&roles.inner, "LAN"));
        let [up, down] = shaped(answers.link, file, &uplink, &inner);
        lines.extend([format!("{up}   # uploads: {BELOW}"), format!("{down}   # downloads")]);
    }
    lines.push(match Path::new(SOCKETS).is_dir() {
        true => "fenxi top".to_owned(),
        false => format!("fenxi top --socket {}", file.with_file_name(SOCKET).display()),
    });
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MIB;
    use crate::proc::tests::machine;

    fn answers(want: Want) -> Answers {
        let link = Link { down: 50_000, up: 5_000 };
        Answers { want, interface: "lan".to_owned(), link }
    }

    #[test]
    fn tables_are_sized_by_the_link() {
        let of = |down| max_flows(Link { down, up: down });
        assert_eq!([of(5_000), of(1_000_000), of(10_000_000)], [65_536, 524_288, 4_194_304]);
        let written = |memory| configuration(&answers(Want::See), memory).contains("\nmax_flows");
        assert_eq!([None, Some(64 * MIB), Some(63 * MIB)].map(written), [true, true, false]);
    }

    #[test]
    fn the_uplink_is_shaped_at_its_own_rate() {
        let (file, shape) = (Path::new(DEFAULT_FILE), answers(Want::Shape));
        let of = |uplink: Option<&str>| Roles {
            inner: Some("lan".to_owned()),
            uplink: uplink.map(str::to_owned),
        };
        let unit = shaper(&shape, file, &of(Some("wan"))).unwrap();
        for line in ["ExecStart=/etc/fenxi/shaper/shaper up wan 4750kbit\n", " up lan 47500kbit\n"]
        {
            assert!(unit.contains(line), "{line}: {unit}");
        }
        let unknown = of(None);
        assert_eq!(shaper(&shape, file, &unknown), None);
        let by_hand = next(&shape, file, &unknown, None);
        for line in ["shaper up UPLINK 4750kbit   # uploads", "  /etc/fenxi/shaper/shaper up lan "]
        {
            assert!(by_hand.contains(line), "{line}: {by_hand}");
        }
    }

    #[test]
    fn a_service_starts_with_its_shaper_or_ends_it() {
        let (file, roles) = (Path::new(DEFAULT_FILE), Roles { inner: None, uplink: None });
        let next = |want, had_shaper, has_shaper| {
            let service = Service { had_shaper, has_shaper, ..Service::new("fenxi.service") };
            next(&answers(want), file, &roles, Some(&service))
        };
        let starts =
            "  systemctl enable fenxi fenxi-shaper && systemctl restart fenxi fenxi-shaper\n";
        let shaped = next(Want::Shape, false, true);
        assert!(shaped.contains(starts) && !shaped.contains(" up "), "{shaped}");
        assert!(!shaped.contains("systemctl stop"), "{shaped}");
        let again = next(Want::Shape, true, true);
        assert!(again.contains(&format!("  systemctl stop fenxi-shaper\n{starts}")), "{again}");
        let ends = "  systemctl disable --now fenxi-shaper\n  systemctl enable fenxi &&";
        // A side is no longer known.
        let by_hand = next(Want::Shape, true, false);
        assert!(by_hand.contains(ends) && by_hand.contains("shaper up UPLINK "), "{by_hand}");
        assert!(next(Want::See, true, false).contains(ends));
        assert!(!next(Want::See, false, false).contains("shaper"));
    }

    #[test]
    fn the_sides_of_a_router() {
        let find = |routes: &str, named: &str, known: &[&str]| {
            let (_dir, machine) = machine(&[("proc/net/route", routes)]);
            let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
            let answers = Answers { interface: named.to_owned(), ..answers(Want::Shape) };
            let Roles { inner, uplink } = Roles::find(&answers, &machine, &known);
            [inner, uplink].map(|side| side.unwrap_or_default())
        };
        let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                      lan\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                      wan\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\n";
        assert_eq!(find(routes, "lan", &["lan", "wan", "dmz"]), ["lan", "wan"]);
        assert_eq!(find(routes, "wan", &["lan", "wan"]), ["lan", "wan"]);
        assert_eq!(find(routes, "wan", &["lan", "wan", "dmz"]), ["", "wan"]);
        assert_eq!(find("", "lan", &["lan", "wan"]), ["lan", ""]);
    }
}
