//! `fenxi ctl`: sends one request to a running instance and prints the reply as text or JSON.
//! `fenxi top`: the live view of a running instance.

mod policy;
mod scores;
mod status;
mod truth;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use console::text::{columns, left};
use console::top::{Options, Screen, moment, run};

use crate::cli::{CtlArgs, CtlCommand, CtlModelCommand, TopArgs};
use crate::exit::{Failure, print};
use crate::figures::{counted, duration, grouped, scaled};
use crate::protocol::{
    AskError, Body, Client, Code, DeviceRow, Difference, FlowRow, HostRow, Measured, OfferedTask,
    Reloaded, Request, ServiceRow, ThreadRow, milliseconds,
};
use config::Sources;

/// Time limit for the reply; longer than the server's own limit for opening a model.
const REPLY_WITHIN: Duration = Duration::from_secs(150);

/// How long a reply may take: a picture of a large table takes a few seconds.
const SCREEN_WITHIN: Duration = Duration::from_secs(10);

/// Size of the screen that `--once` prints, where the environment does not say it.
const COLUMNS: usize = 80;
const LINES: usize = 24;

/// Sends the request and prints the reply.
///
/// # Errors
/// 69: no instance listens, or it does not support the request. 77: permission denied. 65: a named
/// thing does not exist.
pub fn ctl(args: &CtlArgs) -> Result<(), Failure> {
    let socket = socket(args.socket.as_deref())?;
    let request = request(&args.command)?;
    let client = Client::new(&socket, REPLY_WITHIN);
    let (line, reply) = client.ask(&request).map_err(unanswered)?;
    if args.json {
        print(&line)?;
    } else if let Some(body) = &reply.body {
        print(&page(body))?;
    }
    match reply.error {
        // Errors of a configuration already name file and line, so the socket is not added.
        Some(lines) if reply.code == Code::Invalid as u16 => Err(refusal(reply.code, lines)),
        Some(error) => Err(refusal(reply.code, format!("{}: {error}", socket.display()))),
        None => Ok(()),
    }
}

/// This socket, or the one of the service's configuration.
pub fn socket(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let none = || Failure::config("control.socket is empty; set the socket with --socket PATH");
    let configured = || Sources::of_service(None, &[]).socket();
    named.map(Path::to_owned).or_else(configured).ok_or_else(none)
}

fn request(command: &CtlCommand) -> Result<Request, Failure> {
    Ok(match command {
        CtlCommand::Status => Request::Status {},
        CtlCommand::Threads => Request::Threads {},
        CtlCommand::Devices => Request::Devices {},
        CtlCommand::Metrics => Request::Metrics {},
        CtlCommand::Flows { label, host, port, dscp_seen, dscp_set, sort, reverse, top } => {
            Request::Flows {
                label: label.clone(),
                host: host.clone(),
                port: *port,
                dscp_seen: dscp_seen.map(|dscp| dscp.to_string()),
                dscp_set: dscp_set.map(|dscp| dscp.to_string()),
                sort: *sort,
                reverse: *reverse,
                top: *top,
            }
        }
        CtlCommand::Explain { flow } => Request::Explain { flow: flow.join(" ") },
        CtlCommand::Hosts { label, top } => Request::Hosts { label: label.clone(), top: *top },
        CtlCommand::Services { service } => Request::Services { service: service.clone() },
        CtlCommand::Log { level } => Request::Log { level: level.clone() },
        CtlCommand::Reload { confirm_within } => {
            Request::Reload { confirm_within_s: *confirm_within }
        }
        CtlCommand::Confirm => Request::Confirm {},
        CtlCommand::Reopen => Request::Reopen {},
        CtlCommand::Model(CtlModelCommand::Load { dir, task }) => {
            Request::ModelLoad { dir: absolute(dir)?, task: task.clone() }
        }
        CtlCommand::Model(CtlModelCommand::Scores) => Request::ModelScores {},
        CtlCommand::Model(CtlModelCommand::Offer { dir, task }) => {
            Request::ModelOffer { dir: absolute(dir)?, task: task.clone() }
        }
        CtlCommand::Model(CtlModelCommand::Truth { file, task }) => {
            Request::ModelTruth { flows: truth::read(file)?, task: task.clone() }
        }
        CtlCommand::Model(CtlModelCommand::Offers) => Request::ModelOffers {},
        CtlCommand::Model(CtlModelCommand::Back { task }) => {
            Request::ModelBack { task: task.clone() }
        }
        CtlCommand::Policy(command) => policy::request(command)?,
        CtlCommand::Drain => Request::Drain {},
    })
}

/// A path for the server, which has another working directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// The text of a file, or for `-` of standard input. `cure`: what to do where it has more than
/// `most` bytes.
fn read(file: &Path, most: usize, cure: &str) -> Result<String, Failure> {
    let wrong = |error: io::Error| {
        Failure::no_input(format!("{}: cannot be read: {error}", file.display()))
    };
    let mut text = String::new();
    // One byte more than allowed shows that the file is too long.
    let end = most as u64 + 1;
    match file.as_os_str() == "-" {
        true => io::stdin().take(end).read_to_string(&mut text),
        false => File::open(file).and_then(|opened| opened.take(end).read_to_string(&mut text)),
    }
    .map_err(wrong)?;
    match text.len() > most {
        true => {
            Err(Failure::data(format!("{}: more than {} MiB; {cure}", file.display(), most >> 20)))
        }
        false => Ok(text),
    }
}

/// A request that could not be sent, or whose reply did not come.
pub fn unanswered(error: AskError) -> Failure {
    let message = error.to_string();
    match error {
        AskError::NotAllowed(_) => Failure::not_allowed(message),
        AskError::Unavailable(..) => Failure::unavailable(message),
        AskError::Lost(..) => Failure::io(message),
        AskError::Invalid(..) => Failure::data(message),
    }
}

fn refusal(code: u16, message: String) -> Failure {
    let is = |known: Code| code == known as u16;
    if is(Code::Forbidden) {
        Failure::not_allowed(message)
    } else if is(Code::Malformed) || is(Code::TooLong) {
        Failure::usage(message)
    } else if is(Code::Invalid) {
        Failure::config_lines(message.lines())
    } else if is(Code::NotFound) {
        Failure::data(message)
    } else {
        Failure::unavailable(message)
    }
}

fn page(body: &Body) -> String {
    match body {
        Body::Status(status) => status::page(status),
        Body::Threads(threads) => table(
            "thread|core|state|cpu s|stalls|packets|series|share",
            threads.iter().map(|thread| thread_row(thread, threads)),
        ),
        Body::Devices(devices) => table(
            "thread|device|state|batches|series|failures|runs on|last error",
            devices.iter().map(device_row),
        ),
        Body::Flows(flows) => table(
            "flow|label|conf|by|proto|B/s|pkt/s|age|bytes|packets|from|to|client|server|host|dscp|\
             does|rtt|ended",
            flows.iter().map(flow_row),
        ),
        Body::Metrics(page) => page.clone(),
        Body::Explained(explanation) => console::explanation::text(explanation),
        Body::Top(top) => {
            let screen = Screen { top: Some((**top).clone()), ..Screen::default() };
            screen.text(80, 24)
        }
        Body::Hosts(hosts) => table(
            "host|name|mac|vendor|label|confidence|flows|last label",
            hosts.iter().map(host_row),
        ),
        Body::Services(services) => table(
            "service|egress|in flight|begun|answered|reset|unanswered|in B|out B|p50|p90",
            services.iter().flat_map(service_rows),
        ),
        Body::Reloaded(reloaded) => reloaded_page(reloaded),
        Body::PolicyChanged(changed) => policy::changed_line(changed),
        Body::Policy(shown) => policy::page(shown),
        Body::Scores(tasks) => scores::page(tasks),
        Body::Offers(tasks) => tasks.iter().map(offered_page).collect(),
        Body::Done(what) => format!("{what}\n"),
    }
}

fn reloaded_page(reloaded: &Reloaded) -> String {
    let row = |what: &'static str| {
        move |row: &Difference| {
            let [from, to, origin] = [&row.from, &row.to, &row.origin].map(or_dash);
            vec![what.to_owned(), row.key.clone(), from, to, origin]
        }
    };
    let applied = reloaded.applied.iter().map(row("applied"));
    let rows = applied.chain(reloaded.needs_restart.iter().map(row("needs restart")));
    let mut page = match reloaded.applied.len() + reloaded.needs_restart.len() {
        0 => String::new(),
        _ => table("what|key|before|read|where", rows),
    };
    let model = match reloaded.model_swapped {
        true => "swapped",
        false => "unchanged",
    };
    page += &format!("{} keys unchanged; model {}: {model}\n", reloaded.unchanged, reloaded.model);
    if reloaded.policy_changes_gone > 0 {
        page += &format!(
            "{} of the rules by `fenxi ctl policy` {} gone; `fenxi ctl policy undo` brings the old \
             rules back\n",
            counted(reloaded.policy_changes_gone as u64, "change"),
            if reloaded.policy_changes_gone == 1 { "is" } else { "are" }
        );
    }
    if let Some(seconds) = reloaded.confirm_within_s {
        page += &format!(
            "the reload will be undone in {seconds} s unless `fenxi ctl confirm` comes first\n"
        );
    }
    page
}

fn offered_page(offered: &OfferedTask) -> String {
    let OfferedTask { task, stands, outcomes, last_refusal } = offered;
    let outcomes = outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}"));
    let outcomes: Vec<String> = outcomes.collect();
    let outcomes = match outcomes.is_empty() {
        true => "nothing was offered yet".to_owned(),
        false => outcomes.join(", "),
    };
    let stands = stands.as_deref().unwrap_or("no candidate is under way");
    let mut page = format!("{task}: {stands}\n  so far: {outcomes}\n");
    if let Some((outcome, why)) = last_refusal {
        page += &format!("  last {outcome}: {why}\n");
    }
    page
}

fn thread_row(thread: &ThreadRow, all: &[ThreadRow]) -> Vec<String> {
    let share = |own: Option<u64>, of: fn(&ThreadRow) -> Option<u64>| {
        let sum: u64 = all.iter().filter_map(of).sum();
        own.map(|own| 100.0 * own as f64 / sum.max(1) as f64)
    };
    let share = share(thread.packets, |it| it.packets).or(share(thread.series, |it| it.series));
    vec![
        thread.name.clone(),
        or_dash(&thread.core),
        thread.state.clone(),
        or_dash(&thread.cpu_s.map(|seconds| format!("{seconds:.2}"))),
        thread.stalls.to_string(),
        or_dash(&thread.packets),
        or_dash(&thread.series),
        or_dash(&share.map(|share| format!("{share:.1} %"))),
    ]
}

/// The busiest egresses of a service, and all others.
fn service_rows(service: &ServiceRow) -> impl Iterator<Item = Vec<String>> {
    let time = |us: Option<u64>| or_dash(&us.map(|us| format!("{:.1} ms", us as f64 / 1e3)));
    service.shown().map(move |row| {
        vec![
            service.name.clone(),
            row.egress.clone(),
            grouped(row.flows_in_flight),
            grouped(row.flows_begun),
            grouped(row.flows_answered),
            grouped(row.flows_reset),
            grouped(row.syns_unanswered),
            scaled(row.bytes_in as f64).trim_end().to_owned(),
            scaled(row.bytes_out as f64).trim_end().to_owned(),
            time(row.completion_p50_us),
            time(row.completion_p90_us),
        ]
    })
}

fn device_row(device: &DeviceRow) -> Vec<String> {
    vec![
        device.thread.clone(),
        match &device.task {
            Some(task) => format!("{} of {task}", device.device),
            None => device.device.clone(),
        },
        device.state.clone(),
        device.batches.to_string(),
        device.series.to_string(),
        device.failures.to_string(),
        device.effective.clone(),
        or_dash(&device.last_error),
    ]
}

fn flow_row(flow: &FlowRow) -> Vec<String> {
    vec![
        flow.flow_id.to_string(),
        flow.shown_labels(),
        or_dash(&flow.confidence.map(|it| format!("{it:.2}"))),
        or_dash(&flow.decided_by),
        flow.transport.clone(),
        scaled(flow.bytes_per_s).trim_end().to_owned(),
        scaled(flow.packets_per_s).trim_end().to_owned(),
        duration(flow.age_s),
        scaled(flow.bytes as f64).trim_end().to_owned(),
        grouped(flow.packets),
        flow.src.clone(),
        flow.dst.clone(),
        or_dash(&flow.src_name),
        or_dash(&flow.dst_name),
        or_dash(&flow.host),
        flow.shown_dscp(),
        or_dash(&flow.behaviour),
        or_dash(&flow.measured.as_ref().and_then(Measured::round_trip_us).map(milliseconds)),
        or_dash(&flow.end_reason),
    ]
}

fn host_row(host: &HostRow) -> Vec<String> {
    let known = &host.known;
    let addresses = match known.addresses.is_empty() {
        true => host.address.clone(),
        false => known.addresses.join(", "),
    };
    vec![
        addresses,
        or_dash(&known.name),
        or_dash(&known.mac),
        or_dash(&known.vendor),
        or_dash(&host.label),
        or_dash(&host.confidence.map(|it| format!("{it:.2}"))),
        host.flows.to_string(),
        or_dash(&host.last),
    ]
}

fn or_dash(value: &Option<impl ToString>) -> String {
    value.as_ref().map_or("-".to_owned(), ToString::to_string)
}

/// Aligned columns; bars separate their names.
fn table(header: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let header = header.split('|').map(str::to_owned).collect();
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| columns(&row[column]));
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut page = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells.map(|(cell, &width)| left(cell, width)).collect();
        page += cells.join("  ").trim_end();
        page.push('\n');
    }
    page
}

/// Shows the live view until the user quits; with `--once`, prints one screen.
///
/// # Errors
/// 69: nothing listens, or there is no terminal. 77: the socket is somebody else's.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    let client = Client::new(&socket(args.socket.as_deref())?, SCREEN_WITHIN);
    if args.once {
        return once(&client);
    }
    let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let options = Options { interval: Duration::from_secs(u64::from(args.interval)), has_colour };
    run(client, options).map_err(|error| Failure::unavailable(format!("fenxi top: {error}")))
}

fn once(client: &Client) -> Result<(), Failure> {
    // For its exit code, which tells a missing permission from a missing program.
    client.ask(&Request::Threads {}).map_err(unanswered)?;
    let top = moment(client, 200).map_err(Failure::unavailable)?;
    let size = |name: &str, default: usize| {
        let value = std::env::var(name).ok().and_then(|value| value.parse().ok());
        value.unwrap_or(default).clamp(1, 1000)
    };
    let screen = Screen { top: Some(top), ..Screen::default() };
    print(&screen.text(size("COLUMNS", COLUMNS), size("LINES", LINES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["x", "longer", "1"], ["yy", "", "23"]];
        let rows = rows.iter().map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table("a|b|c", rows), "a   b       c\nx   longer  1\nyy          23\n");
    }

    #[test]
    fn a_reload_counts_the_changes_that_are_gone() {
        let said = |gone| {
            let reloaded = Reloaded {
                applied: Vec::new(),
                needs_restart: Vec::new(),
                unchanged: 1,
                model: String::new(),
                model_generation: 0,
                model_swapped: false,
                confirm_within_s: None,
                policy_changes_gone: gone,
            };
            reloaded_page(&reloaded)
        };
        assert!(!said(0).contains("gone"));
        for (gone, expected) in [
            (1, "1 change of the rules by `fenxi ctl policy` is gone; "),
            (2, "2 changes of the rules by `fenxi ctl policy` are gone; "),
        ] {
            assert!(said(gone).contains(expected), "{}", said(gone));
        }
    }

    #[test]
    fn refusals_have_exit_codes_of_their_own() {
        let code = |code: Code| refusal(code as u16, String::new()).code();
        assert_eq!(code(Code::Forbidden), 77);
        assert_eq!(code(Code::Malformed), 64);
        assert_eq!(code(Code::NotFound), 65);
        assert_eq!(code(Code::Invalid), 78);
        assert_eq!(code(Code::Conflict), 69);
        assert_eq!(code(Code::Busy), 69);
        assert_eq!(code(Code::NotHere), 69);
    }
}
