//! What the page shows, as its address says it: filters, and the order of each table.

use std::fmt::Write as _;

use crate::protocol::{Column, FlowFilter, Order};
use crate::text::escape;

/// A view of the page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// The flows that tables of labels, hosts and flows are of.
    pub filter: FlowFilter,
    /// The order of each table.
    pub orders: Orders,
    /// What is wrong with the address.
    pub problem: Option<String>,
}

/// The order of each table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Orders {
    /// Labels.
    pub labels: Order,
    /// Hosts.
    pub hosts: Order,
    /// Flows.
    pub flows: Order,
}

/// A table whose rows can be sorted.
#[derive(Debug, Clone, Copy)]
pub enum Sorted {
    Labels,
    Hosts,
    Flows,
}

impl Orders {
    pub(super) fn of(&self, table: Sorted) -> Order {
        match table {
            Sorted::Labels => self.labels,
            Sorted::Hosts => self.hosts,
            Sorted::Flows => self.flows,
        }
    }

    /// Those that are not the default, with their names in the address.
    pub(super) fn set(&self) -> impl Iterator<Item = (&'static str, Order)> {
        let all = [("labels", self.labels), ("hosts", self.hosts), ("flows", self.flows)];
        all.into_iter().filter(|(_, order)| *order != Order::default())
    }
}

impl View {
    /// The view of a query such as `host=10.0.0.5&flows=-age`. Names that are not known count for
    /// nothing.
    pub fn parse(query: &str) -> View {
        let mut view = View::default();
        for part in query.split('&') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = decoded(value).trim().to_owned();
            let Ok(order) = value.parse::<Order>();
            match name {
                "labels" => view.orders.labels = order,
                "hosts" => view.orders.hosts = order,
                "flows" => view.orders.flows = order,
                "label" if !value.is_empty() => view.filter.label = Some(value),
                "host" if !value.is_empty() => view.filter.host = Some(value),
                "dscp_seen" if !value.is_empty() => view.filter.dscp_seen = Some(value),
                "dscp_set" if !value.is_empty() => view.filter.dscp_set = Some(value),
                "port" if !value.is_empty() => match value.parse() {
                    Ok(port) => view.filter.port = Some(port),
                    Err(_) => view.refuse(format!("\"{value}\" is no port; give 0 to 65535")),
                },
                _ => {}
            }
        }
        view
    }

    /// Says what is wrong with a filter.
    pub fn refuse(&mut self, why: String) {
        self.problem.get_or_insert(why);
    }

    /// The address of the same view, sorted by this column; in reverse if it is so already.
    pub(super) fn sorted(&self, table: Sorted, by: Column) -> String {
        let mut view = self.clone();
        let order = match table {
            Sorted::Labels => &mut view.orders.labels,
            Sorted::Hosts => &mut view.orders.hosts,
            Sorted::Flows => &mut view.orders.flows,
        };
        *order = Order { by, is_reversed: order.by == by && !order.is_reversed };
        view.address()
    }

    /// The address of the same view, with another filter.
    pub(super) fn filtered(&self, change: impl FnOnce(&mut FlowFilter)) -> String {
        let mut view = self.clone();
        change(&mut view.filter);
        view.address()
    }

    fn address(&self) -> String {
        let FlowFilter { label, host, port, dscp_seen, dscp_set } = &self.filter;
        let filters = [
            ("label", label.clone()),
            ("host", host.clone()),
            ("port", port.map(|it| it.to_string())),
            ("dscp_seen", dscp_seen.clone()),
            ("dscp_set", dscp_set.clone()),
        ];
        let filters = filters.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let orders = self.orders.set().map(|(name, order)| (name, order.to_string()));
        let mut address = "/".to_owned();
        for (at, (name, value)) in filters.chain(orders).enumerate() {
            let separator = if at == 0 { '?' } else { '&' };
            let _ = write!(address, "{separator}{name}={}", encoded(&value));
        }
        address
    }
}

/// A value in an address (RFC 3986, section 2).
pub(super) fn encoded(value: &str) -> String {
    let mut encoded = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b':' => {
                encoded.push(char::from(byte));
            }
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// The value that an address or a form means. What cannot be shown is escaped.
pub fn decoded(value: &str) -> String {
    let mut bytes = value.as_bytes().iter();
    let mut decoded = Vec::new();
    while let Some(&byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let rest = bytes.as_slice();
                let hex = rest.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
                match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) => {
                        bytes.nth(1);
                        byte
                    }
                    None => b'%',
                }
            }
            byte => byte,
        });
    }
    escape(&String::from_utf8_lossy(&decoded)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        let query = "label=video%26%C3%A9+%3C&host=2001:db8::1&port=443&dscp_seen=EF&dscp_set=8&\
            flows=-age&hosts=flows";
        let view = View::parse(query);
        assert_eq!(view.filter.label.as_deref(), Some("video&é <"));
        assert_eq!(view.filter.host.as_deref(), Some("2001:db8::1"));
        assert_eq!(view.filter.port, Some(443));
        assert_eq!(view.filter.dscp_seen.as_deref(), Some("EF"));
        assert_eq!(view.filter.dscp_set.as_deref(), Some("8"));
        assert_eq!(view.orders.flows, Order { by: Column::Age, is_reversed: true });
        assert_eq!(view.problem, None);
        let address = view.address();
        assert_eq!(View::parse(address.strip_prefix("/?").unwrap()), view);
        assert!(view.sorted(Sorted::Flows, Column::Age).ends_with("&flows=age"));
        assert!(view.sorted(Sorted::Flows, Column::Rate).ends_with("hosts=flows"));
        assert_eq!(View::default().address(), "/");
    }

    #[test]
    fn what_is_wrong_is_said_and_what_is_empty_is_no_filter() {
        let wrong = View::parse("port=99999&label=&nonsense&=&flows=%zz%");
        assert_eq!(wrong.filter, FlowFilter::default());
        assert_eq!(wrong.problem.as_deref(), Some("\"99999\" is no port; give 0 to 65535"));
        assert_eq!(decoded("%1b[2J%e2%80%ae%"), "\\u{1b}[2J\\u{202e}%");
        assert_eq!(View::parse("label=&host=&port=&dscp_seen=&dscp_set="), View::default());
    }
}
