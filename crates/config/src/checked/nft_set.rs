//! `[nftset.NAME]` tables.

use std::time::Duration;

use netfilter::nft_set::{Field, SetName};

use crate::keys::{Keyed, stored};
use crate::kind::{Kind, integer};
use crate::nearest::nearest;
use crate::section;
use crate::setting::Setting;
use crate::settings::Settings;

/// Each set has a thread of its own.
const SETS_MAX: usize = 16;

section! {
    /// A set of nftables that gets the ends of flows.
    pub struct NftSet = Named "nftset", checked by check;

    /// the set, which must be there with flags timeout; its type must be that of key
    set: Option<SetName> = restart "set", Kind::Text, "\"inet fw4 ssh\"",
        "family, table and set" => set;
    /// labels, or taxonomies, whose flows are added to the set
    labels: Vec<String> = live "labels", Kind::TextList { least: 1 }, "[\"SSH\"]", "";
    /// what an element is made of, in the order of the set's type: originator_address,
    /// originator_port, responder_address, responder_port, protocol
    key: Vec<Field> = restart "key", Kind::TextList { least: 1 }, "[\"originator_address\"]",
        "" => fields;
    /// how long an element stays after the last label that put it there
    timeout: Duration = restart "timeout_s", integer(0, 31_536_000), "300",
        "seconds, 0 = the timeout of the set" => Setting::seconds;
    /// how many elements may wait to be written; more are dropped and counted
    queue: usize = restart "queue", integer(64, 1 << 20), "4096", "elements";
}

fn set(setting: &Setting) -> Result<Option<SetName>, String> {
    setting.get::<String>()?.parse().map(Some)
}

fn fields(setting: &Setting) -> Result<Vec<Field>, String> {
    setting.list(|name| {
        Field::parse(name).ok_or_else(|| {
            let near = nearest(name, Field::NAMES);
            let near = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
            let known = Field::NAMES.join(", ");
            format!("found \"{name}\", expected some of {known}{near}")
        })
    })
}

fn check(settings: &Settings, problems: &mut Vec<String>) {
    let tables = settings.tables("nftset");
    if let Some(table) = tables.clone().nth(SETS_MAX) {
        let (origin, name) = (&table.origin, &table.name);
        problems.push(format!(
            "{origin}: nftset.{name}: expected {SETS_MAX} tables at most; a table may have several \
             labels"
        ));
    }
    for table in tables.filter(|table| !table.refused) {
        let needed = NftSet::SECTION.keys.iter().take(2);
        for key in needed.filter(|key| table.get(key.name()).is_none()) {
            let (origin, name) = (&table.origin, &table.name);
            let (key, default) = (key.name(), key.default);
            problems.push(format!(
                "{origin}: nftset.{name}.{key}: is missing; expected as in {key} = {default}"
            ));
        }
    }
    stored::<NftSet>(settings, problems);
}
