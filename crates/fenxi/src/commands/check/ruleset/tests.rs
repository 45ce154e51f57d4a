//! Rules as the programs print them, and the conflicts reported for them.

use super::*;

const MASK: u32 = 0xff00_0000;
fn ours() -> Bits {
    let values = vec![0x0100_0000, 0x0700_0000];
    Bits { mask: MASK, key: "mark.mask".to_owned(), values }
}

const CT: &str = r#"{"ct": {"key": "mark"}}"#;
const META: &str = r#"{"meta": {"key": "mark"}}"#;
const NEW: &str = r#"{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "new"}}"#;

fn set(key: &str, value: &str) -> String {
    format!(r#"{{"mangle": {{"key": {key}, "value": {value}}}}}"#)
}

fn compare(left: &str, operator: &str, right: &str) -> String {
    format!(r#"{{"match": {{"op": "{operator}", "left": {left}, "right": {right}}}}}"#)
}

/// A ruleset of nftables, each rule given by its statements.
fn nft(rules: &[&[String]]) -> Ruleset {
    let rules = rules.iter().zip(1..).map(|(statements, handle)| {
        let (expr, chain) =
            (statements.join(","), r#""family": "inet", "table": "t", "chain": "c""#);
        format!(r#"{{"rule": {{{chain}, "handle": {handle}, "expr": [{expr}]}}}}"#)
    });
    let objects: Vec<String> = rules.collect();
    let mut ruleset = Ruleset::default();
    ruleset.add_nft(&format!(r#"{{"nftables": [{}]}}"#, objects.join(",")));
    ruleset
}

/// The cause of the only conflict, without its place.
fn cause(ruleset: &Ruleset) -> Option<String> {
    let mut conflicts = ruleset.conflicts(&ours());
    assert!(conflicts.len() <= 1, "{conflicts:?}");
    conflicts.pop().map(|conflict| conflict.cause)
}

fn writes(statements: &[String]) -> bool {
    let cause = cause(&nft(&[statements]));
    cause.is_some_and(|cause| cause.starts_with("writes the bits "))
}

fn sets(statements: &[String]) -> bool {
    let cause = cause(&nft(&[statements]));
    cause.is_some_and(|cause| cause.starts_with("sets the bits "))
}

#[test]
fn rules_of_nftables_that_write_the_bits() {
    let new = || NEW.to_owned();
    // At any time.
    assert!(writes(&[set(CT, "1")]));
    assert!(writes(&[set(CT, META)]));
    assert!(writes(&[set(CT, &format!(r#"{{"&": [{CT}, 255]}}"#))]));
    assert!(writes(&[set(CT, &format!(r#"{{"|": [{CT}, 16777216]}}"#))]));
    assert!(writes(&[set(CT, r#"{"map": {"key": {"meta": {"key": "iifname"}}, "data": "@m"}}"#)]));
    let states = concat!(
        r#"{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "#,
        r#""right": ["established", "new"]}}"#
    );
    assert!(writes(&[states.to_owned(), set(CT, "1")]));
    // Other bits alone.
    assert!(!writes(&[set(CT, &format!(r#"{{"|": [{{"&": [{CT}, 4294902271]}}, 256]}}"#))]));
    assert!(!writes(&[set(CT, &format!(r#"{{"|": [{CT}, 16384]}}"#))]));
    assert!(!writes(&[set(META, CT)]));

    // Once per connection, which is harmless unless the bits are ours.
    for guard in [new(), compare(CT, "==", "0")] {
        assert!(sets(&[guard.clone(), set(CT, "16777217")]));
        assert!(!sets(&[guard.clone(), set(CT, "1")]));
        assert!(!sets(&[guard.clone(), set(CT, META)]), "packets have no such bit");
        assert!(!writes(&[guard.clone(), set(CT, "1")]));
    }
    let pairs = concat!(
        r#"{"map": {"key": {"meta": {"key": "iifname"}}, "#,
        r#""data": {"set": [["a", 1], ["b", 33554432]]}}}"#
    );
    assert!(sets(&[new(), set(CT, pairs)]));
    // Packets have the bit by another rule.
    let both = nft(&[&[set(META, "16777216")], &[new(), set(CT, META)]]);
    assert!(cause(&both).unwrap().starts_with("sets the bits 0x1000000 of new connections"));
}

#[test]
fn rules_that_compare_the_mark_as_a_whole() {
    let misses = |rules: &[&[String]]| cause(&nft(rules));
    let whole = misses(&[&[compare(CT, "==", "1")]]).unwrap();
    assert!(whole.contains("with 0x1, which never matches"), "{whole}");
    assert!(whole.ends_with("compare under the mask 0xffffff"), "{whole}");
    assert!(misses(&[&[compare(CT, "==", r#"{"set": [1, 2]}"#)]]).is_some());
    assert!(misses(&[&[compare(CT, "!=", "0")]]).is_none());
    let masked = |mask: u32| format!(r#"{{"&": [{CT}, {mask}]}}"#);
    assert!(misses(&[&[compare(&masked(0x3f00), "==", "256")]]).is_none());
    // Acting on our marks is what they are for.
    assert!(misses(&[&[compare(&masked(MASK), "==", "16777216")]]).is_none());
    let map = format!(
        r#"{{"vmap": {{"key": {}, "data": {{"set": [[117440512, {{"accept": null}}]]}}}}}}"#,
        masked(MASK)
    );
    assert!(misses(&[&[map]]).is_none());
    // The packet's mark, only where ours is copied there.
    let packet = [compare(META, "==", "5")];
    assert!(misses(&[&packet]).is_none());
    assert!(misses(&[&packet, &[set(META, CT)]]).unwrap().contains("the packet's mark"));
}

#[test]
fn rules_that_copy_marks_of_packets() {
    // As nft prints `meta mark & BIT != 0 ct mark set ct mark | BIT`.
    let or = |bit: u32| set(CT, &format!(r#"{{"|": [{CT}, {bit}]}}"#));
    let highest = compare(META, "!=", r#"{"prefix": {"addr": 0, "len": 1}}"#);
    let next = compare(&format!(r#"{{"&": [{META}, 1073741824]}}"#), "!=", "0");
    let copy = nft(&[&[highest, or(0x8000_0000)], &[next, or(0x4000_0000)]]);
    assert_eq!((copy.copied(), cause(&copy)), (0xc000_0000, None));
    let whole = nft(&[&[NEW.to_owned(), set(CT, META)]]);
    assert_eq!(whole.copied(), u32::MAX);
    // Bits that the packet has not.
    let others = nft(&[&[compare(META, "==", "5"), or(0x4000_0000)]]);
    assert_eq!(others.copied(), 0);
    assert!(cause(&others).unwrap().starts_with("writes the bits "));

    let mut iptables = Ruleset::default();
    let save = "-A PREROUTING -j CONNMARK --save-mark --nfmask 0xff000000 --ctmask 0xff000000";
    iptables.add_iptables("iptables-save", &format!("*mangle\n{save}\nCOMMIT\n"));
    assert_eq!(iptables.copied(), MASK);
}

#[test]
fn rules_of_iptables() {
    let said = |line: &str| {
        let mut ruleset = Ruleset::default();
        ruleset.add_iptables(
            "iptables-save",
            &format!("*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING {line}\nCOMMIT\n"),
        );
        ruleset.conflicts(&ours()).pop()
    };
    let found = said("-j CONNMARK --set-xmark 0x1/0xffffffff").unwrap();
    assert_eq!(
        (found.place.as_str(), found.remedy.as_str()),
        (
            "iptables mangle PREROUTING: -A PREROUTING -j CONNMARK --set-xmark 0x1/0xffffffff",
            "iptables -t mangle -S PREROUTING"
        )
    );
    for line in [
        "-j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff",
        "-j CONNMARK --set-xmark 0x1000000/0x1000000",
        "-m conntrack --ctstate NEW -j CONNMARK --set-xmark 0x1000001/0xffffffff",
        "-m connmark --mark 0x1 -j MARK --set-xmark 0x7/0xffffffff",
    ] {
        assert!(said(line).is_some(), "{line}");
    }
    for line in [
        "-j CONNMARK --set-xmark 0x100/0x3f00",
        "-j CONNMARK --save-mark --nfmask 0x3f00 --ctmask 0x3f00",
        "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff",
        "-m conntrack --ctstate NEW -j CONNMARK --set-xmark 0x1/0xffffffff",
        "-m connmark --mark 0x0 -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff",
        "-m connmark --mark 0x1000000/0xff000000 -j MARK --set-xmark 0x7/0xff",
        "-m mark --mark 0x1 -j ACCEPT",
    ] {
        assert_eq!(said(line), None, "{line}");
    }
}

#[test]
fn rules_of_iptables_are_read_by_iptables_save() {
    let target = r#"{"counter": null}, {"xt": {"type": "target", "name": "CONNMARK"}}"#.to_owned();
    let mut ruleset = nft(&[&[target]]);
    assert_eq!(ruleset.unread, 1);
    assert!(ruleset.tracks);
    ruleset.add_iptables("iptables-save", "*mangle\nCOMMIT\n");
    assert_eq!(ruleset.unread, 0);
}

#[test]
fn ip_rule_sees_what_is_copied_to_packets() {
    const RULES: &str = r#"[{"priority":0,"src":"all","table":"local"},
        {"priority":7,"src":"all","fwmark":"0x100","fwmask":"0x3f00","table":"102"},
        {"priority":8,"src":"all","fwmark":"0x7000000","fwmask":"0xff000000","table":"100"},
        {"priority":9,"not":null,"src":"all","fwmark":"0xca6c","table":"101"},
        {"priority":10,"src":"10.0.0.0","srclen":8,"fwmark":"0x1","table":"100"}]"#;
    let mut copies = nft(&[&[set(META, CT)]]);
    copies.add_ip_rules("ip", RULES);
    let conflicts = copies.conflicts(&ours());
    let places: Vec<&str> = conflicts.iter().map(|it| it.place.as_str()).collect();
    assert_eq!(places, ["ip rule 9: not fwmark 0xca6c", "ip rule 10: fwmark 0x1"]);
    assert_eq!(
        conflicts[0].remedy,
        "ip rule add not fwmark 0xca6c/0xffffff lookup 101 priority 9 && ip rule del not fwmark \
         0xca6c lookup 101 priority 9"
    );
    assert_eq!(conflicts[1].remedy, "ip rule show priority 10");

    // Without a rule that copies them, packets have none of our bits.
    let mut alone = nft(&[]);
    alone.add_ip_rules("ip", RULES);
    assert_eq!(alone.conflicts(&ours()), []);
}

#[test]
fn text_that_is_none_of_theirs_has_no_rules() {
    let mut ruleset = Ruleset::default();
    for text in ["", "null", "{", "[1]", r#"{"nftables": 7}"#, r#"{"nftables": [{"rule": 3}]}"#] {
        ruleset.add_nft(text);
        ruleset.add_ip_rules("ip", text);
        ruleset.add_iptables("iptables-save", text);
    }
    assert!(!ruleset.tracks);
    assert_eq!(ruleset.conflicts(&ours()), []);
}
