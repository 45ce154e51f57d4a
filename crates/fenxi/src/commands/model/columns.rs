//! Where a table has what a model reads of a flow: its series and its context. Each column of a
//! series holds one number per element, with spaces between.
//!
//! Times and TCP flags have two forms: times since the flow's first packet with decimal flags
//! (`offsets_us`), and gaps between packets with hexadecimal flags (`iat_us`).

use accel::Bundle;
use cring::{Context, Series};

use super::table::{Row, Table};
use crate::exit::Failure;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// TCP flags of the packet that opens a connection, and of its answer.
const SYN: i64 = 2;
const ACK: i64 = 16;

/// Lengths saturate here, as they do in a series.
const LENGTH_MAX: i64 = u16::MAX as i64;

pub struct Columns {
    k: usize,
    /// By channel: the feature's name and its column.
    features: Vec<(String, usize)>,
    /// The column whose numbers are counted as elements.
    counted: usize,
    /// Whether that column holds lengths, which are never 0.
    has_lengths: bool,
    context: Vec<String>,
    protocol: Option<usize>,
    server_port: Option<usize>,
    /// Protocols and ports that name flows with their first packets.
    ports_first: Vec<(u8, u16)>,
    flags: Option<usize>,
    midstream: Option<usize>,
    /// Times between all packets are gaps, and their flags are hexadecimal.
    has_gaps: bool,
    /// Elements are packets with payload, whose columns have one form only.
    is_data: bool,
}

impl Columns {
    pub fn find(table: &Table, bundle: &Bundle) -> Result<Columns, Failure> {
        let unit = bundle.unit();
        let has_gaps = table.column("iat_us").is_some();
        let feature = |feature: &String| {
            let name = match column(unit, feature) {
                name if name == "offsets_us" && has_gaps => "iat_us".to_owned(),
                name => name,
            };
            let problem = || {
                format!(
                    "no column `{name}`, in which the model's feature {feature} (unit {unit}) \
                     would be; see docs/model.md"
                )
            };
            let at = table.column(&name);
            Ok((feature.clone(), at.ok_or_else(|| table.refuse_header(&problem()))?))
        };
        let features: Vec<_> =
            bundle.features().iter().map(feature).collect::<Result<_, Failure>>()?;
        for name in bundle.context() {
            let column = match name.as_str() {
                "protocol" => "proto",
                "server_port" => "dport",
                // The table has no servers: nothing is known of them.
                _ => continue,
            };
            if table.column(column).is_none() {
                return Err(table.refuse_header(&format!(
                    "no column `{column}`, in which the model's context {name} would be; see \
                     docs/model.md"
                )));
            }
        }
        let lengths = table.column(&column(unit, "signed_length"));
        let ports_first = bundle.ports().iter().filter(|_| bundle.is_ports_first());
        let ports_first = ports_first.map(|it| (it.protocol, it.port));
        Ok(Columns {
            k: bundle.k(),
            counted: lengths.or(features.first().map(|(_, at)| *at)).unwrap_or(0),
            has_lengths: lengths.is_some(),
            features,
            context: bundle.context().to_vec(),
            protocol: table.column("proto"),
            server_port: table.column("dport"),
            ports_first: ports_first.collect(),
            flags: table.column("flags"),
            midstream: table.column("midstream"),
            has_gaps,
            is_data: unit == "data",
        })
    }

    /// How many elements a flow has, K at most, and its series, channel after channel of K numbers,
    /// 0 beyond its elements.
    pub fn series(&self, row: &Row<'_>) -> Result<(usize, Vec<f32>), Failure> {
        let mut series = Vec::with_capacity(self.features.len() * self.k);
        let lengths = row.cell(Some(self.counted));
        let elements = lengths.split_whitespace().take(self.k).count();
        if self.has_lengths && lengths.split_whitespace().take(elements).any(|it| it == "0") {
            return Err(row.refuse("a length of 0; a packet has at least its IP header"));
        }
        for (feature, at) in &self.features {
            let text = row.cell(Some(*at));
            let is_flags = feature == "tcp_flags";
            // UDP packets have no flags.
            let numbers = match is_flags && text.is_empty() {
                true => vec![0; elements],
                false => {
                    self.numbers(row, text, elements, is_flags && self.has_gaps && !self.is_data)?
                }
            };
            if numbers.len() < elements {
                let found = numbers.len();
                return Err(row.refuse(&format!(
                    "{feature}: {found} numbers for {elements} elements; the lists of a flow have \
                     the same length"
                )));
            }
            let start = series.len();
            match feature.as_str() {
                "inter_arrival_us" => series.extend(self.gaps(&numbers)),
                _ => series.extend(numbers.iter().map(|&number| saturated(feature, number))),
            }
            series.resize(start + self.k, 0.0);
        }
        Ok((elements, series))
    }

    fn numbers(
        &self,
        row: &Row<'_>,
        text: &str,
        count: usize,
        is_hexadecimal: bool,
    ) -> Result<Vec<i64>, Failure> {
        let radix = if is_hexadecimal { 16 } else { 10 };
        let number = |text: &str| {
            i64::from_str_radix(text, radix).map_err(|error| {
                let text: String = text.chars().take(30).collect();
                row.refuse(&format!("\"{text}\": {error}; write whole numbers with spaces between"))
            })
        };
        text.split_whitespace().take(count).map(number).collect()
    }

    /// Times as differences from the element before; 0 for the first and where time steps back.
    fn gaps(&self, times: &[i64]) -> Vec<f32> {
        let gap = |at: usize| match (at, self.has_gaps && !self.is_data) {
            (0, _) => 0,
            (_, true) => times[at],
            (_, false) => times[at].saturating_sub(times[at - 1]),
        };
        let saturated = |gap: i64| gap.clamp(0, u32::MAX.into()) as f32;
        (0..times.len()).map(gap).map(saturated).collect()
    }

    /// What the model wants of the flow besides its series.
    pub fn context(&self, row: &Row<'_>) -> Result<Vec<f32>, Failure> {
        if self.context.is_empty() {
            return Ok(Vec::new());
        }
        let is_named = match self.ports_first.is_empty() {
            true => false,
            false => self.port(row)?.is_some_and(|port| self.ports_first.contains(&port)),
        };
        // The server of a mid-stream flow is unknown, and a port does not confirm itself.
        let has_port = !is_named && !self.is_midstream(row)?;
        let number = |name: &String| match name.as_str() {
            "protocol" => Ok(f32::from(self.protocol(row)?)),
            "server_port" if has_port => {
                Ok(f32::from(number::<u16>(row, "dport", self.server_port)?))
            }
            "server_port" => Ok(0.0),
            _ => {
                let local = Context::ALL.into_iter().find(|it| it.name() == name);
                Ok(local.map_or(0.0, |it| it.value(&Series::default())))
            }
        };
        self.context.iter().map(number).collect()
    }

    /// Protocol and destination port of the flow's first packet; none if the table lacks the
    /// columns.
    pub fn port(&self, row: &Row<'_>) -> Result<Option<(u8, u16)>, Failure> {
        if self.protocol.is_none() || self.server_port.is_none() {
            return Ok(None);
        }
        Ok(Some((self.protocol(row)?, number(row, "dport", self.server_port)?)))
    }

    fn protocol(&self, row: &Row<'_>) -> Result<u8, Failure> {
        match number(row, "proto", self.protocol)? {
            protocol @ (TCP | UDP) => Ok(protocol),
            other => Err(row.refuse(&format!(
                "proto: {other}; a flow is TCP (6) or UDP (17); remove the line"
            ))),
        }
    }

    /// Whether the flow is one of TCP whose first packet is not the SYN that opens a connection. A
    /// table without flags does not tell.
    pub fn is_midstream(&self, row: &Row<'_>) -> Result<bool, Failure> {
        let said = row.cell(self.midstream);
        if !said.is_empty() {
            return Ok(matches!(said, "1" | "true" | "True"));
        }
        if row.cell(self.protocol) == "17" {
            return Ok(false);
        }
        let flags = self.numbers(row, row.cell(self.flags), 1, self.has_gaps)?;
        Ok(flags.first().is_some_and(|flags| flags & (SYN | ACK) != SYN))
    }
}

fn column(unit: &str, feature: &str) -> String {
    let column = match feature {
        "signed_length" => "lengths",
        "payload_length" => "payloads",
        "inter_arrival_us" => "offsets_us",
        "tcp_flags" => "flags",
        other => other,
    };
    match unit {
        "data" => format!("data_{column}"),
        _ => column.to_owned(),
    }
}

/// A number as a series stores it. Tables may give payloads the sign of their direction.
fn saturated(feature: &str, number: i64) -> f32 {
    let number = number.clamp(-LENGTH_MAX, LENGTH_MAX);
    match feature {
        "payload_length" => number.abs() as f32,
        _ => number as f32,
    }
}

fn number<T: std::str::FromStr>(
    row: &Row<'_>,
    name: &str,
    column: Option<usize>,
) -> Result<T, Failure> {
    let text = row.cell(column);
    text.parse().map_err(|_| {
        let text: String = text.chars().take(30).collect();
        row.refuse(&format!(
            "{name}: \"{text}\" is not a whole number that it can be; correct the line"
        ))
    })
}
