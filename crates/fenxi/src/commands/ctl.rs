//! `fenxi ctl`: sends one request to a running instance and prints the reply as text or JSON.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::{CtlArgs, CtlCommand, CtlModelCommand};
use crate::exit::{Failure, print};
use crate::figures::{grouped, scaled};
use crate::protocol::Overview;
use crate::protocol::{
    Body, Code, DeviceRow, Figure, FlowRow, HostRow, Reloaded, Reply, Request, Status, ThreadRow,
};
use crate::sinks;
use config::{Difference, Sources};

/// Time limit for the reply; longer than the server's own limit for opening a model.
const REPLY_WITHIN: Duration = Duration::from_secs(150);

/// Sends the request and prints the reply.
///
/// # Errors
/// 69: no instance listens, or it does not support the request. 77: permission denied. 65: a named thing does not exist.
pub fn ctl(args: &CtlArgs) -> Result<(), Failure> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => configured_socket()?,
    };
    let request = request(&args.command)?;
    let line = ask(&socket, &request)?;
    let reply: Reply = serde_json::from_str(&line)
        .map_err(|error| Failure::data(format!("{}: invalid reply: {error}", socket.display())))?;
    if args.json {
        print(&line)?;
    } else if let Some(body) = &reply.body {
        print(&page(body))?;
    }
    match reply.error {
        // Errors of a configuration already name file and line, so the socket is not added.
        Some(lines) if reply.code == Code::Invalid as u16 => Err(refusal(reply.code, lines)),
        Some(error) => Err(refusal(
            reply.code,
            format!("{}: {error}", socket.display()),
        )),
        None => Ok(()),
    }
}

fn configured_socket() -> Result<PathBuf, Failure> {
    let none = || Failure::config("control.socket is empty; set the socket with --socket PATH");
    Sources::of_service(None, &[]).socket().ok_or_else(none)
}

fn request(command: &CtlCommand) -> Result<Request, Failure> {
    Ok(match command {
        CtlCommand::Status => Request::Status {},
        CtlCommand::Threads => Request::Threads {},
        CtlCommand::Devices => Request::Devices {},
        CtlCommand::Flows { label, top } => Request::Flows {
            label: label.clone(),
            top: *top,
        },
        CtlCommand::Hosts { label, top } => Request::Hosts {
            label: label.clone(),
            top: *top,
        },
        CtlCommand::Log { level } => Request::Log {
            level: level.clone(),
        },
        CtlCommand::Reload { confirm_within } => Request::Reload {
            confirm_within_s: *confirm_within,
        },
        CtlCommand::Confirm => Request::Confirm {},
        CtlCommand::Reopen => Request::Reopen {},
        CtlCommand::Model(CtlModelCommand::Load { dir }) => Request::ModelLoad {
            // The server has another working directory.
            dir: std::path::absolute(dir)
                .map_err(|error| Failure::usage(format!("{}: {error}", dir.display())))?,
        },
        CtlCommand::Drain => Request::Drain {},
    })
}

/// Sends the request and returns the line of the reply.
fn ask(socket: &Path, request: &Request) -> Result<String, Failure> {
    let name = socket.display();
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::not_allowed(format!(
            "{name}: permission denied: run as root or as the service user"
        )),
        _ => Failure::unavailable(format!("{name}: no fenxi listens on this socket: {error}")),
    })?;
    let broken = |error: io::Error| Failure::io(format!("{name}: connection lost: {error}"));
    stream
        .set_read_timeout(Some(REPLY_WITHIN))
        .map_err(broken)?;
    let mut line =
        serde_json::to_string(request).map_err(|error| Failure::software(error.to_string()))?;
    line.push('\n');
    // A client that is refused gets the reply before it has written its request. The write then fails, but the reply
    // counts.
    let asked = stream.write_all(line.as_bytes());
    line.clear();
    BufReader::new(stream)
        .read_line(&mut line)
        .map_err(broken)?;
    if line.is_empty() {
        asked.map_err(broken)?;
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(line)
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
        Body::Status(status) => status_page(status),
        Body::Threads(threads) => table(
            &[
                "thread", "core", "state", "cpu s", "stalls", "packets", "series", "share",
            ],
            threads.iter().map(|thread| thread_row(thread, threads)),
        ),
        Body::Devices(devices) => table(
            &[
                "thread",
                "device",
                "state",
                "batches",
                "series",
                "failures",
                "runs on",
                "last error",
            ],
            devices.iter().map(device_row),
        ),
        Body::Flows(flows) => table(
            &[
                "flow", "label", "bytes", "packets", "proto", "from", "to", "ended",
            ],
            flows.iter().map(flow_row),
        ),
        Body::Hosts(hosts) => table(
            &["host", "label", "confidence", "flows", "last label"],
            hosts.iter().map(host_row),
        ),
        Body::Reloaded(reloaded) => reloaded_page(reloaded),
        Body::Done(what) => format!("{what}\n"),
    }
}

fn reloaded_page(reloaded: &Reloaded) -> String {
    let row = |what: &'static str| {
        move |row: &Difference| {
            let [from, to, origin] =
                [&row.from, &row.to, &row.origin].map(|it| or_dash(it.as_ref()));
            vec![what.to_owned(), row.key.clone(), from, to, origin]
        }
    };
    let applied = reloaded.applied.iter().map(row("applied"));
    let rows = applied.chain(reloaded.needs_restart.iter().map(row("needs restart")));
    let mut page = match reloaded.applied.len() + reloaded.needs_restart.len() {
        0 => String::new(),
        _ => table(&["what", "key", "before", "read", "where"], rows),
    };
    let model = match reloaded.model_swapped {
        true => "swapped",
        false => "unchanged",
    };
    // Writing to a string cannot fail.
    let _ = writeln!(
        page,
        "{} keys unchanged; model {}, generation {}: {model}",
        reloaded.unchanged, reloaded.model, reloaded.model_generation
    );
    if let Some(seconds) = reloaded.confirm_within_s {
        let _ = writeln!(
            page,
            "the reload will be undone in {seconds} s unless `fenxi ctl confirm` comes first"
        );
    }
    page
}

fn status_page(status: &Status) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        page,
        "{}: fenxi {}, process {}, up {:.0} s",
        status.state, status.version, status.pid, status.uptime_s
    );
    if let Some(left) = status.unconfirmed_s {
        let _ = writeln!(
            page,
            "the last reload will be undone in {left:.0} s unless `fenxi ctl confirm` comes first"
        );
    }
    for check in &status.checks {
        let sign = if check.holds { '+' } else { '-' };
        let _ = writeln!(page, "[{sign}] {}: {}", check.name, check.reason);
    }
    let _ = write_overview(&mut page, &status.overview);
    page.push('\n');
    page + &table(
        &["metric", "value", "unit"],
        status.figures.iter().map(figure_row),
    )
}

/// Maximum number of labels in the overview.
const LABELS: usize = 8;

fn write_overview(page: &mut String, overview: &Overview) -> std::fmt::Result {
    let n = grouped;
    writeln!(
        page,
        "traffic   {} packets, {}B; now {}pps; {} of at most {} flows ({} half-open), {} begun",
        n(overview.packets),
        scaled(overview.bytes as f64),
        scaled(overview.packets_per_s),
        n(overview.flows),
        n(overview.flows_max),
        n(overview.half_open),
        n(overview.flows_begun)
    )?;
    let mut labels: Vec<_> = overview.labels.iter().collect();
    labels.sort_by_key(|&(label, flows)| (std::cmp::Reverse(*flows), label));
    let named = labels.iter().take(LABELS);
    let mut named: Vec<String> = named
        .map(|(label, flows)| format!("{label} {}", n(**flows)))
        .collect();
    if labels.len() > LABELS {
        named.push(format!("and {} more", labels.len() - LABELS));
    }
    writeln!(
        page,
        "labels    {} by {}: {}",
        n(overview.labels.values().sum()),
        overview.model,
        if named.is_empty() {
            "none".to_owned()
        } else {
            named.join(", ")
        }
    )?;
    if overview.series_withheld > 0 {
        writeln!(
            page,
            "no label  {} flows began mid-stream, and the model was not trained for that",
            n(overview.series_withheld)
        )?;
    }
    for line in sinks::status_lines(&overview.sinks) {
        writeln!(page, "{line}")?;
    }
    let lost = sinks::lost(&overview.sinks).map(|(noun, count)| format!(", {} {noun}", n(count)));
    writeln!(
        page,
        "lost      {} packets before they were read, {} not forwarded, {} series{}; {} packets found the table full, {} flows \
         were evicted from it",
        n(overview.dropped),
        n(overview.unsent),
        n(overview.series_lost),
        lost.collect::<String>(),
        n(overview.table_full),
        n(overview.evicted)
    )?;
    writeln!(
        page,
        "latency   K-th packet to label: median {:.2} ms, 99 % within {:.2} ms",
        overview.label_p50_ms, overview.label_p99_ms
    )
}

fn figure_row(figure: &Figure) -> Vec<String> {
    let labels = figure.labels.iter();
    let labels: Vec<String> = labels
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let labels = match labels.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", labels.join(",")),
    };
    vec![
        format!("{}{labels}", figure.name),
        figure.value.to_string(),
        figure.unit.clone(),
    ]
}

fn thread_row(thread: &ThreadRow, all: &[ThreadRow]) -> Vec<String> {
    let share = |own: Option<u64>, of: fn(&ThreadRow) -> Option<u64>| {
        let sum: u64 = all.iter().filter_map(of).sum();
        own.map(|own| 100.0 * own as f64 / sum.max(1) as f64)
    };
    let share = share(thread.packets, |it| it.packets).or(share(thread.series, |it| it.series));
    vec![
        thread.name.clone(),
        or_dash(thread.core.as_ref()),
        thread.state.clone(),
        or_dash(thread.cpu_s.map(|seconds| format!("{seconds:.2}")).as_ref()),
        thread.stalls.to_string(),
        or_dash(thread.packets.as_ref()),
        or_dash(thread.series.as_ref()),
        or_dash(share.map(|share| format!("{share:.1} %")).as_ref()),
    ]
}

fn device_row(device: &DeviceRow) -> Vec<String> {
    vec![
        device.thread.clone(),
        device.device.clone(),
        device.state.clone(),
        device.batches.to_string(),
        device.series.to_string(),
        device.failures.to_string(),
        device.effective.clone(),
        or_dash(device.last_error.as_ref()),
    ]
}

fn flow_row(flow: &FlowRow) -> Vec<String> {
    vec![
        flow.flow_id.to_string(),
        or_dash(flow.label.as_ref()),
        or_dash(flow.bytes.as_ref()),
        or_dash(flow.packets.as_ref()),
        flow.proto.to_string(),
        flow.src.clone(),
        flow.dst.clone(),
        or_dash(flow.end_reason.as_ref()),
    ]
}

fn host_row(host: &HostRow) -> Vec<String> {
    let confidence = host.confidence.map(|it| format!("{it:.2}"));
    vec![
        host.address.clone(),
        or_dash(host.label.as_ref()),
        or_dash(confidence.as_ref()),
        host.flows.to_string(),
        host.last.clone(),
    ]
}

fn or_dash<T: ToString>(value: Option<&T>) -> String {
    value.map_or("-".to_owned(), T::to_string)
}

/// Formats rows as aligned columns.
fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let header = header.iter().map(|&name| name.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut page = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        page += cells.join("  ").trim_end();
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["x", "longer", "1"], ["yy", "", "23"]];
        let rows = rows.iter().map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&["a", "b", "c"], rows),
            "a   b       c\nx   longer  1\nyy          23\n"
        );
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
