//! `[nftset.NAME]` tables.

use std::time::Duration;

use netfilter::nft_set::Field;

use crate::checked::NftSet;
use crate::keys::NftSetKey;
use crate::layers::Table;

/// Each set has a thread of its own.
const SETS_MAX: usize = 16;
/// The default of `nftset.NAME.timeout_s`.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The default of `nftset.NAME.queue`.
const QUEUE: usize = 4096;

/// The sets that the tables ask for.
pub(super) fn check(tables: &[Table], problems: &mut Vec<String>) -> Vec<NftSet> {
    if let Some(table) = tables.get(SETS_MAX) {
        let (origin, name) = (&table.origin, &table.name);
        problems.push(format!(
            "{origin}: nftset.{name}: expected {SETS_MAX} tables at most; a table may have several labels"
        ));
    }
    tables.iter().map(|table| set(table, problems)).collect()
}

fn set(table: &Table, problems: &mut Vec<String>) -> NftSet {
    let (origin, name) = (&table.origin, &table.name);
    let mut set = NftSet {
        name: name.clone(),
        origin: origin.clone(),
        set: None,
        labels: Vec::new(),
        key: vec![Field::OriginatorAddress],
        timeout: TIMEOUT,
        queue: QUEUE,
    };
    for &id in NftSetKey::ALL {
        let Some(setting) = table.of_nft_set(id) else {
            if matches!(id, NftSetKey::Set | NftSetKey::Labels) && !table.refused {
                let (key, default) = (id.key().name(), id.key().default);
                problems.push(format!(
                    "{origin}: nftset.{name}.{key}: is missing; expected as in {key} = {default}"
                ));
            }
            continue;
        };
        if let Err(why) = id.store(&mut set, setting) {
            let (origin, key) = (&setting.origin, id.key().name());
            problems.push(format!("{origin}: nftset.{name}.{key}: {why}"));
        }
    }
    set
}
