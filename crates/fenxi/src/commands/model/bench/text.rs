//! The report for people.

use std::fmt::Write as _;

use super::report::{AtDepth, LabelCount, Report};
use crate::escape::escape;
use crate::figures::{grouped, scaled};
use labelled::scores::Plain;

/// Labels that the bundle does not have, as many as are printed.
const OTHERS_SHOWN: usize = 8;
/// Confusions, as many as are printed.
const CONFUSIONS_SHOWN: usize = 10;

/// The whole report.
pub fn page(report: &Report) -> String {
    let mut page = head(report);
    page += &depths(report);
    page += &baselines(report);
    page += &names(report);
    page += &classes(report);
    page += &confusions(report);
    let speed = &report.speed;
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        page,
        "\nspeed  {}rows/s: median of {} batches of {}, {:.0} µs each; an indication, `fenxi profile` measures",
        scaled(speed.rows_per_second),
        speed.batches,
        speed.batch,
        speed.median_us
    );
    page
}

fn head(report: &Report) -> String {
    let rows = &report.rows;
    let mut page = format!(
        "{} {} ({}) on device {} ({})\n{}, labels in `{}`\n\n",
        report.model,
        report.version,
        report.precision,
        report.device,
        report.effective,
        escape(&report.table),
        escape(&report.column)
    );
    let mut line = |count: usize, what: &str| {
        if count > 0 {
            let _ = writeln!(page, "{:>9}  {what}", grouped(count as u64));
        }
    };
    line(rows.rows, "flows in the table");
    line(rows.scored, "scored at one depth or more");
    line(
        rows.short,
        "not asked about: fewer elements than the first depth",
    );
    line(rows.midstream, "left out: began mid-stream");
    line(rows.unlabelled, "left out: no label");
    line(
        rows.uncertain,
        "left out: the label was guessed (column `confidence`)",
    );
    let named = others(&report.other_labels);
    line(
        rows.not_in_bundle,
        &format!("left out: the bundle does not have the label: {named}"),
    );
    if let (Some(class), false) = (&report.others_are, report.other_labels.is_empty()) {
        let flows = report.other_labels.iter().map(|it| it.flows).sum();
        line(
            flows,
            &format!("count as {class}, because the bundle does not have the label: {named}"),
        );
    }
    page + "\nIf the model was trained on these flows, its scores say little; its CARD.md has those of held-out flows.\n\n"
}

fn others(labels: &[LabelCount]) -> String {
    let shown = labels.iter().take(OTHERS_SHOWN);
    let mut names: Vec<String> = shown
        .map(|it| format!("{} {}", escape(&it.label), it.flows))
        .collect();
    if labels.len() > OTHERS_SHOWN {
        names.push(format!("and {} more labels", labels.len() - OTHERS_SHOWN));
    }
    names.join(", ")
}

fn depths(report: &Report) -> String {
    let mut page =
        "depth   flows  accuracy  macro-F1    ECE  p >= 0.8  right  confidence   sure  right\n"
            .to_owned();
    for depth in &report.depths {
        let (plain, decided, sure) = (depth.plain, depth.decided, depth.sure);
        let _ = writeln!(
            page,
            "{:>5}  {:>6}  {:>8.3}  {:>8.3}  {:>5.3}  {:>7.1}%  {:>5.3}  {:>10.2}  {:>4.1}%  {:>5.3}",
            depth.elements,
            grouped(depth.flows as u64),
            plain.accuracy,
            plain.macro_f1,
            depth.ece,
            100.0 * decided.share,
            decided.right,
            sure.at,
            100.0 * sure.share,
            sure.right
        );
    }
    page
}

fn baselines(report: &Report) -> String {
    let Some(fitted) = &report.baselines else {
        return "\nNo baselines: nothing can be held out; name a column with two values or more with --group.\n"
            .to_owned();
    };
    let mut page = format!(
        "\nAccuracy / macro-F1 of baselines on the same flows, each fitted on this table by {} folds of {} groups of flows,\n\
         so that no group is on both sides:\n\
         depth            model         constant       port table     prefix table\n",
        fitted.folds,
        grouped(fitted.groups as u64),
    );
    let pair = |plain: Option<&Plain>| {
        plain.map_or("-".to_owned(), |it| {
            format!("{:.3} / {:.3}", it.accuracy, it.macro_f1)
        })
    };
    for depth in &report.depths {
        let of = |name| pair(depth.baselines.get(name));
        let (model, constant) = (pair(Some(&depth.plain)), of("constant"));
        let (port, prefix) = (of("port_table"), of("prefix_table"));
        let AtDepth { elements, .. } = depth;
        let _ = writeln!(
            page,
            "{elements:>5}  {model:>15}  {constant:>15}  {port:>15}  {prefix:>15}"
        );
    }
    page
}

fn names(report: &Report) -> String {
    let names = &report.names;
    let mut page = format!(
        "\nNames that flows end with: {:.1} % of {} flows get one, {:.3} of those are right.\n\
         decided by   flows   named  right\n",
        100.0 * names.named,
        grouped(names.flows as u64),
        names.right
    );
    for it in &names.decided_by {
        let (flows, named) = (100.0 * it.flows, 100.0 * it.named);
        let _ = writeln!(
            page,
            "{:11}  {flows:>4.1}%  {named:>5.1}%  {:>5.3}",
            it.by, it.right
        );
    }
    page
}

fn classes(report: &Report) -> String {
    let own = report
        .names
        .classes
        .iter()
        .filter(|it| it.flows + it.named > 0);
    let width = own
        .clone()
        .map(|it| it.label.chars().count())
        .max()
        .unwrap_or(0)
        .max(5);
    let mut page = format!(
        "\n{:width$}   flows   named  precision  recall     F1\n",
        "label"
    );
    for it in own {
        let (flows, named) = (grouped(it.flows as u64), grouped(it.named as u64));
        let _ = writeln!(
            page,
            "{:width$}  {flows:>6}  {named:>6}  {:>9.3}  {:>6.3}  {:>5.3}",
            it.label, it.precision, it.recall, it.f1
        );
    }
    page
}

fn confusions(report: &Report) -> String {
    let all = &report.names.confusions;
    if all.is_empty() {
        return String::new();
    }
    let mut page = "\ncommonest confusions\n".to_owned();
    for it in all.iter().take(CONFUSIONS_SHOWN) {
        let _ = writeln!(
            page,
            "{:>6}  {} named {}",
            grouped(it.flows as u64),
            it.label,
            it.name
        );
    }
    page
}
