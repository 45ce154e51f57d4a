//! How the rules of a file would be found: rules that models cover, and rules in hash tables.

use std::fmt::Write as _;

use policy::RuleSet;
use policy::classifier::{Classifier, Description};
use serde_json::{Value, json};

use super::check::counted;
use crate::exit::Failure;
use crate::figures::grouped;

pub fn bytes(count: usize) -> String {
    format!("{}B", crate::figures::scaled(count as f64))
}

/// Trains the models of IPv4 and IPv6, which takes about a second for 500,000 rules.
pub fn describe(set: &RuleSet) -> Result<[Description; 2], Failure> {
    let full = |error: policy::classifier::TableFull| Failure::data(error.to_string());
    let v4 = Classifier::new(&set.v4).map_err(full)?.describe();
    let v6 = Classifier::new(&set.v6).map_err(full)?.describe();
    Ok([v4, v6])
}

/// In lines, a family each and an iSet each.
pub fn page(index: &[Description; 2], rules: usize) -> String {
    let mut page = String::new();
    for (family, it) in ["IPv4", "IPv6"].into_iter().zip(index) {
        let filters = it.learned() + it.remainder;
        if filters == 0 {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "{family}: models find {} of {} ({:.1} %); {} in {}",
            grouped(it.learned() as u64),
            counted(filters, "filter", "filters"),
            100.0 * it.learned() as f64 / filters as f64,
            grouped(it.remainder as u64),
            counted(it.tables, "hash table", "hash tables"),
        );
        for iset in &it.isets {
            let _ = writeln!(
                page,
                "  by {}: {} in {}, {}, at most {} searched",
                iset.field,
                counted(iset.filters, "filter", "filters"),
                counted(iset.buckets, "bucket", "buckets"),
                counted(iset.nets, "net", "nets"),
                counted(iset.longest_search as usize, "bucket", "buckets"),
            );
        }
    }
    let all: usize = index.iter().map(|it| it.bytes).sum();
    let _ = writeln!(
        page,
        "{} of memory to find them, {:.0} bytes for each rule",
        bytes(all),
        all as f64 / rules.max(1) as f64
    );
    page
}

/// As JSON, by family.
pub fn as_json(index: &[Description; 2]) -> Value {
    let family = |it: &Description| {
        let iset = |iset: &policy::classifier::IsetFigures| {
            json!({
                "field": iset.field,
                "filters": iset.filters,
                "buckets": iset.buckets,
                "nets": iset.nets,
                "longest_search": iset.longest_search,
            })
        };
        json!({
            "isets": it.isets.iter().map(iset).collect::<Vec<_>>(),
            "remainder": it.remainder,
            "tables": it.tables,
            "bytes": it.bytes,
        })
    };
    json!({"v4": family(&index[0]), "v6": family(&index[1])})
}
