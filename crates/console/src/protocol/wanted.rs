//! Which flows are wanted, and in what order: for `fenxi ctl flows` and the page.

use std::cmp::Ordering;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Flows that are wanted: those with all that is given here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// A label of any task, in upper or lower case.
    pub label: Option<String>,
    /// The host that the flow's label describes, by address, name or MAC address.
    pub host: Option<String>,
    /// The port of either end.
    pub port: Option<u16>,
    /// The DSCP of the flow's first packet, by name or number.
    pub dscp_seen: Option<String>,
    /// The DSCP that its packets get.
    pub dscp_set: Option<String>,
}

/// A column by which the rows of a table are sorted; a table without it stays by rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    /// Bytes per second.
    #[default]
    Rate,
    /// Packets of a flow, packets per second of a label.
    Packets,
    Bytes,
    Flows,
    Age,
    Label,
    Confidence,
    By,
    Protocol,
    From,
    To,
    Host,
    /// The DSCP set, else the one seen.
    Dscp,
    Does,
    Rtt,
    Retransmits,
}

impl Column {
    /// The columns of flows, by name.
    pub const OF_FLOWS: [(&'static str, Column); 15] = [
        ("rate", Column::Rate),
        ("packets", Column::Packets),
        ("bytes", Column::Bytes),
        ("age", Column::Age),
        ("label", Column::Label),
        ("confidence", Column::Confidence),
        ("by", Column::By),
        ("protocol", Column::Protocol),
        ("from", Column::From),
        ("to", Column::To),
        ("host", Column::Host),
        ("dscp", Column::Dscp),
        ("does", Column::Does),
        ("rtt", Column::Rtt),
        ("retransmits", Column::Retransmits),
    ];

    /// Whether the highest number comes first; all else begins with A.
    pub fn is_number(self) -> bool {
        use Column::{Age, Bytes, Confidence, Dscp, Flows, Packets, Rate, Retransmits, Rtt};
        matches!(self, Rate | Packets | Bytes | Flows | Age | Confidence | Dscp | Rtt | Retransmits)
    }

    pub fn name(self) -> &'static str {
        let mut names = Column::OF_FLOWS.iter();
        names.find(|(_, column)| *column == self).map_or("flows", |(name, _)| name)
    }
}

/// The order of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Order {
    pub by: Column,
    /// The lowest number, or Z, first.
    pub is_reversed: bool,
}

impl Order {
    /// Compares two values of the column: numbers from the highest, all else from the lowest. What
    /// is absent comes last, also in the reverse order.
    pub fn compare<T: PartialOrd>(self, a: &Option<T>, b: &Option<T>) -> Ordering {
        let (Some(one), Some(other)) = (a, b) else { return b.is_some().cmp(&a.is_some()) };
        let ordering = one.partial_cmp(other).unwrap_or(Ordering::Equal);
        match self.by.is_number() != self.is_reversed {
            true => ordering.reverse(),
            false => ordering,
        }
    }
}

/// As in the address of the page: `bytes`, and `-bytes` for the reverse order. What is no column is
/// the order by rate.
impl FromStr for Order {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Order, Self::Err> {
        let name = text.strip_prefix('-').unwrap_or(text);
        let flows = [("flows", Column::Flows)];
        let mut columns = Column::OF_FLOWS.iter().chain(&flows);
        let by = columns.find(|(known, _)| *known == name).map_or(Column::Rate, |it| it.1);
        Ok(Order { by, is_reversed: text.starts_with('-') })
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.is_reversed { "-" } else { "" }, self.by.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_json_and_in_addresses() {
        for (name, column) in Column::OF_FLOWS.into_iter().chain([("flows", Column::Flows)]) {
            assert_eq!(serde_json::to_string(&column).unwrap(), format!("{name:?}"));
            for text in [name.to_owned(), format!("-{name}")] {
                let order: Order = text.parse().unwrap();
                assert_eq!((order.by, order.to_string()), (column, text));
            }
        }
    }

    #[test]
    fn numbers_begin_with_the_highest_and_what_is_absent_ends_every_order() {
        let sorted = |order: &str| {
            let order: Order = order.parse().unwrap();
            let mut values = [Some(1.0), None, Some(3.0), Some(2.0)];
            values.sort_by(|a, b| order.compare(a, b));
            values
        };
        assert_eq!(sorted("bytes"), [Some(3.0), Some(2.0), Some(1.0), None]);
        assert_eq!(sorted("-bytes"), [Some(1.0), Some(2.0), Some(3.0), None]);
        assert_eq!(sorted("label"), [Some(1.0), Some(2.0), Some(3.0), None]);
    }
}
