//! Bits of connection marks: each task has its own, and labels get no others.

use policy::DSCP_MASK;

use crate::checked::{Mapping, Mark, MarkAs};

use super::tasks::Asked;

/// A table of the user's that nothing reads. Asked before marks are made of DSCPs.
pub(super) fn without_effect(first: &Asked<'_>, mark: &Mark) -> Option<String> {
    let entry = mark.class.iter().find(|entry| entry.required)?;
    let table = first.path("mark");
    (mark.holds == MarkAs::Dscp).then(|| {
        format!(
            "{table} ({}): no effect, because mark.as = \"dscp\" writes the DSCP of [tag.dscp]; \
             leave one of the two out",
            entry.origin
        )
    })
}

/// What is wrong with the marks of the first task, which the sections describe as well.
pub(super) fn of_sections(first: &Asked<'_>, mark: &Mark) -> Option<String> {
    match mark.holds {
        MarkAs::Label => {
            let class = first.path("mark");
            beyond_the_mask(first, &class, &mark.class, mark.mask)
        }
        MarkAs::Dscp => mask_of_others(first, mark),
    }
}

/// One line for all labels whose bits the mask would cut: with another mask, the built-in table
/// rarely fits any more, and then it is one slip, not nine.
fn beyond_the_mask(
    asked: &Asked<'_>,
    class: &str,
    rows: &[Mapping<u32>],
    mask: u32,
) -> Option<String> {
    let beyond: Vec<_> = rows
        .iter()
        .filter(|row| row.value & !mask != 0)
        .map(|row| format!("{} = {:#x} ({})", row.label, row.value, row.origin))
        .collect();
    let is_refused = asked.is_refused(&["mark.mask"]);
    (!beyond.is_empty() && !is_refused).then(|| {
        format!(
            "{class}: {}: bits outside of {}; give the labels values within the mask in [{class}]",
            beyond.join(", "),
            named_mask(asked, mask),
        )
    })
}

/// Marks that hold a DSCP have the mask of their readers, which `Settings::settle` gives the key
/// unless it is set.
fn mask_of_others(first: &Asked<'_>, mark: &Mark) -> Option<String> {
    let is_set = mark.mask != DSCP_MASK && !first.is_refused(&["mark.mask"]);
    is_set.then(|| {
        let path = first.path("mark_mask");
        format!(
            "{} with {}: impossible combination: a DSCP takes the bits {DSCP_MASK:#x}; leave \
             {path} out",
            named_mask(first, mark.mask),
            first.settings.named("mark.as")
        )
    })
}

fn named_mask(asked: &Asked<'_>, mask: u32) -> String {
    let path = asked.path("mark_mask");
    let origin = asked.origin("mark_mask");
    format!("{path} = {mask:#x} ({origin})")
}

/// What is wrong with the marks of each task by itself, and of all together.
pub(super) fn of_tasks(asked: &[Asked<'_>], mark: &Mark) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, task) in asked.iter().enumerate() {
        let is_first = at == 0;
        let keys = &task.keys;
        if keys.mark.is_empty() {
            problems.extend(mask_without_marks(task));
        } else if !is_first {
            let class = format!("task.{}.mark", task.name);
            problems.extend(beyond_the_mask(task, &class, &keys.mark, task.mark_mask()));
        }
    }
    problems.extend(overlaps(asked, mark));
    problems
}

fn mask_without_marks(task: &Asked<'_>) -> Option<String> {
    let (name, mask) = (&task.name, task.own("mark_mask")?);
    Some(format!(
        "{}: task.{name}.mark_mask: no effect: no label of the task has a mark; add mark = \
         {{ LABEL = BITS }}, or leave mark_mask out",
        mask.origin
    ))
}

/// Bits that two tasks would write. The first task writes `mark.mask`, as do rules of
/// `policy.rules`.
fn overlaps(asked: &[Asked<'_>], mark: &Mark) -> Vec<String> {
    let Some((first, others)) = asked.split_first() else {
        return Vec::new();
    };
    let mut taken = vec![(first, mark.mask)];
    let mut problems = Vec::new();
    let behaviours = mark.behaviour_mask();
    let masks = asked.iter().map(|task| match std::ptr::eq(task, first) {
        true => (task, mark.mask),
        false => (task, task.mark_mask()),
    });
    for (task, mask) in masks.filter(|(_, mask)| mask & behaviours != 0) {
        problems.push(format!(
            "{}: bits {:#x} belong to task {}, {}; give behaviours bits of their own",
            first.settings.named("mark.behaviour"),
            mask & behaviours,
            task.name,
            named_mask(task, mask),
        ));
    }
    for task in others {
        let mask = task.mark_mask();
        let clash = taken.iter().find(|(_, other)| other & mask != 0);
        if let Some((other, other_mask)) = clash {
            let id = match task.own("mark_mask") {
                Some(_) => "mark_mask",
                None => "mark",
            };
            problems.push(format!(
                "{}: task.{}.{}: bits {:#x} already belong to task {}, {}; give each task bits of \
                 its own",
                task.origin(id),
                task.name,
                id,
                mask & other_mask,
                other.name,
                named_mask(other, *other_mask),
            ));
        }
        taken.push((task, mask));
    }
    problems
}
