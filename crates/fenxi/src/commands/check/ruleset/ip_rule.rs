//! Rules of policy routing, as `ip -j rule` prints them (ip-rule(8)). They see the packet's mark
//! only.

use serde_json::Value;

use super::iptables::number;
use super::{Bits, Compared, Conflict};

#[derive(Debug, Clone)]
pub struct IpRule {
    ip: String,
    priority: String,
    table: String,
    is_negated: bool,
    /// It looks at the mark and nothing else.
    is_plain: bool,
    compared: Compared,
}

pub fn read(ip: &str, json: &str) -> Vec<IpRule> {
    let parsed: Value = serde_json::from_str(json).unwrap_or_default();
    let rules = parsed.as_array().into_iter().flatten();
    let rule = |rule: &Value| {
        let of = |name: &str| rule[name].as_str().map(number);
        let object = rule.as_object()?;
        let plain = ["priority", "not", "src", "fwmark", "fwmask", "table"];
        let is_known = |name: &String| plain.contains(&name.as_str());
        Some(IpRule {
            ip: ip.to_owned(),
            priority: rule["priority"].to_string(),
            table: rule["table"].as_str()?.to_owned(),
            is_negated: object.contains_key("not"),
            is_plain: rule["src"] == "all" && object.keys().all(is_known),
            compared: Compared { mask: of("fwmask").unwrap_or(u32::MAX), value: of("fwmark")? },
        })
    };
    rules.filter_map(rule).collect()
}

impl IpRule {
    /// The rule sees bits of ours in packets (`ours`: those that rules copy there), and expects
    /// others.
    pub fn conflict(&self, bits: &Bits, ours: u32) -> Option<Conflict> {
        let IpRule { ip, priority, table, compared: Compared { mask, value }, .. } = self;
        let is_for_us = bits.values.contains(&(value & bits.mask));
        if mask & ours == 0 || is_for_us {
            return None;
        }
        let not = if self.is_negated { "not " } else { "" };
        let (old, new) = (shown(*value, *mask), shown(*value, mask & !bits.mask));
        let remedy = match self.is_plain {
            true => format!(
                "{ip} rule add {not}fwmark {new} lookup {table} priority {priority} && \
                 {ip} rule del {not}fwmark {old} lookup {table} priority {priority}"
            ),
            false => format!("{ip} rule show priority {priority}"),
        };
        let always = if self.is_negated { "always" } else { "never" };
        Some(Conflict {
            place: format!("{ip} rule {priority}: {not}fwmark {old}"),
            cause: format!(
                "compares bits of the packet's mark that fenxi writes and another rule copies to \
                 packets, and {always} matches \
                 once a connection has a label; compare under the mask {:#x}",
                mask & !bits.mask
            ),
            remedy,
        })
    }
}

fn shown(value: u32, mask: u32) -> String {
    match mask {
        u32::MAX => format!("{value:#x}"),
        mask => format!("{value:#x}/{mask:#x}"),
    }
}
