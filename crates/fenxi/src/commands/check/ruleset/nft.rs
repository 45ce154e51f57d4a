//! Rules of nftables, as `nft -j list ruleset` prints them (libnftables-json(5)).

use serde_json::Value;

use super::{Compared, Rule, Ruleset, Written};

pub fn read(json: &str, to: &mut Ruleset) {
    let parsed: Value = serde_json::from_str(json).unwrap_or_default();
    let objects = parsed["nftables"].as_array().into_iter().flatten();
    for rule in objects.filter_map(|object| object.get("rule")) {
        let statements = rule["expr"].as_array().map_or(&[][..], Vec::as_slice);
        to.tracks |= statements.iter().any(is_tracking);
        let is_of_iptables = |it: &Value| {
            let name = it["xt"]["name"].as_str().unwrap_or_default();
            ["connmark", "mark"].contains(&name.to_ascii_lowercase().as_str())
        };
        to.unread += usize::from(statements.iter().any(is_of_iptables));
        to.rules.push(of_statements(rule, statements));
    }
}

/// Whether the statement makes the kernel track connections: it asks for something of a
/// connection, or translates addresses.
fn is_tracking(statement: &Value) -> bool {
    match statement {
        Value::Object(object) => object.iter().any(|(name, value)| {
            let asks = ["ct", "masquerade", "snat", "dnat", "redirect"].contains(&name.as_str());
            let of_iptables = name == "xt" && {
                let name = value["name"].as_str().unwrap_or_default();
                ["conntrack", "state", "connmark", "CONNMARK", "MASQUERADE", "SNAT", "DNAT"]
                    .contains(&name)
            };
            asks || of_iptables || is_tracking(value)
        }),
        Value::Array(values) => values.iter().any(is_tracking),
        _ => false,
    }
}

fn of_statements(rule: &Value, statements: &[Value]) -> Rule {
    let text = |name: &str| rule[name].as_str().unwrap_or_default();
    let chain = format!("{} {} {}", text("family"), text("table"), text("chain"));
    let mut read = Rule {
        place: format!("nft {chain} handle {}", rule["handle"]),
        show: format!("nft -a list chain {chain}"),
        ..Rule::default()
    };
    for statement in statements {
        if let Some(mangle) = statement.get("mangle") {
            let written = || written(&mangle["value"]);
            match mark(&mangle["key"]) {
                Some(Mark::Connection) => read.to_connection.push(written()),
                Some(Mark::Packet) => read.to_packet.push(written()),
                None => {}
            }
        }
        if let Some(matched) = statement.get("match") {
            let (left, right) = (&matched["left"], &matched["right"]);
            read.is_first |= is_state_new(left, right);
            let is_negated = matched["op"] == "!=";
            match prefix(right) {
                Some((value, mask)) => compare(&mut read, left, mask, &[value], is_negated),
                None => compare(&mut read, left, u32::MAX, &numbers(right), is_negated),
            }
        }
        if let Some(map) = statement.get("vmap") {
            compare(&mut read, &map["key"], u32::MAX, &heads(&map["data"]), false);
        }
    }
    read
}

#[derive(PartialEq)]
enum Mark {
    Connection,
    Packet,
}

fn mark(key: &Value) -> Option<Mark> {
    let is_mark = |of: &str| key[of]["key"] == "mark";
    match (is_mark("ct"), is_mark("meta")) {
        (true, _) => Some(Mark::Connection),
        (_, true) => Some(Mark::Packet),
        _ => None,
    }
}

/// Notes a comparison of a mark under a mask, its own one if it has one.
fn compare(rule: &mut Rule, left: &Value, mask: u32, values: &[u32], is_negated: bool) {
    let (left, mask) = match left["&"].as_array().map(Vec::as_slice) {
        Some([left, mask]) => (left, number(mask).unwrap_or_default()),
        _ => (left, mask),
    };
    let Some(mark) = mark(left) else { return };
    let compared = values.iter().map(|value| Compared { mask, value: *value });
    let compared: Vec<Compared> = compared.collect();
    match mark {
        Mark::Connection => {
            let is_unset = |it: &Compared| it.is_unset(u32::MAX) && !is_negated;
            rule.is_first |= !compared.is_empty() && compared.iter().all(is_unset);
            rule.connection.extend(compared);
        }
        Mark::Packet => rule.packet.extend(compared),
    }
}

/// `ct state new` and nothing else.
fn is_state_new(left: &Value, right: &Value) -> bool {
    let is_new = match right {
        Value::Array(states) => states.iter().all(|state| state == "new"),
        state => state == "new",
    };
    left["ct"]["key"] == "state" && is_new
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

/// The value and the mask of a prefix, as which nft prints a mask of the highest bits.
fn prefix(right: &Value) -> Option<(u32, u32)> {
    let prefix = right.get("prefix")?;
    let length = number(&prefix["len"])?.clamp(1, 32);
    Some((number(&prefix["addr"])?, u32::MAX << (32 - length)))
}

/// The numbers that a mark is compared with: one, or all of a set.
fn numbers(right: &Value) -> Vec<u32> {
    let many = right.as_array().or_else(|| right["set"].as_array());
    match many {
        Some(many) => many.iter().filter_map(number).collect(),
        None => number(right).into_iter().collect(),
    }
}

/// The keys of a map that stands in the rule.
fn heads(data: &Value) -> Vec<u32> {
    let pairs = data["set"].as_array().into_iter().flatten();
    pairs.filter_map(|pair| number(&pair[0])).collect()
}

/// The value of an expression.
fn written(value: &Value) -> Written {
    if let Some(number) = number(value) {
        return Written::constant(number);
    }
    match mark(value) {
        Some(Mark::Connection) => return Written::CONNECTION,
        Some(Mark::Packet) => return Written::PACKET,
        None => {}
    }
    let operands = |operator: &str| {
        let operands = value[operator].as_array()?;
        let (first, rest) = operands.split_first()?;
        let rest: Option<Vec<u32>> = rest.iter().map(number).collect();
        Some((written(first), rest?))
    };
    if let Some((first, masks)) = operands("&") {
        return masks.into_iter().fold(first, Written::and);
    }
    if let Some((first, bits)) = operands("|").or_else(|| operands("^")) {
        return bits.into_iter().fold(first, Written::or);
    }
    let pairs = value["map"]["data"]["set"].as_array();
    let values: Option<Vec<u32>> =
        pairs.and_then(|pairs| pairs.iter().map(|pair| number(&pair[1])).collect());
    match values {
        Some(values) => Written::constant(values.into_iter().fold(0, |all, value| all | value)),
        None => Written::ANYTHING,
    }
}
