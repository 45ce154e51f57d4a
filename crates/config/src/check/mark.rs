//! `[mark]`: bits of connection marks, and whether they stay within the mask.

use super::{Reader, size_of_value};
use crate::checked::{Mark, MarkMapping};
use crate::keys::MARK_CLASS;
use crate::layers::{self, EntrySetting};

pub(super) fn mark(read: &Reader<'_>, problems: &mut Vec<String>) -> Mark {
    let built_in = layers::read(&[], &[], &[], &mut Vec::new());
    let built_in = built_in.entries(MARK_CLASS);
    let mapping = |(label, entry): (&String, &EntrySetting)| MarkMapping {
        label: label.clone(),
        mark: size_of_value(&entry.value) as u32,
        required: built_in
            .get(label)
            .is_none_or(|known| known.value != entry.value),
        origin: entry.origin.clone(),
    };
    let mark = Mark {
        mask: read.size("mark.mask") as u32,
        overwrite: read.bool("mark.overwrite"),
        class: read
            .settings
            .entries(MARK_CLASS)
            .iter()
            .map(mapping)
            .collect(),
        queue: read.size("mark.queue"),
    };
    problems.extend(beyond_the_mask(read, &mark));
    mark
}

/// One line for all labels whose bits the mask would cut: with another mask, the built-in table
/// rarely fits any more, and then it is one slip, not nine.
fn beyond_the_mask(read: &Reader<'_>, mark: &Mark) -> Option<String> {
    let beyond = mark
        .class
        .iter()
        .filter(|mapping| mapping.mark & !mark.mask != 0);
    let beyond: Vec<_> = beyond
        .map(|mapping| {
            format!(
                "{} = {:#x} ({})",
                mapping.label, mapping.mark, mapping.origin
            )
        })
        .collect();
    let refused = read.settings.setting("mark.mask").refused;
    (!beyond.is_empty() && !refused).then(|| {
        format!(
            "{MARK_CLASS}: {}: bits outside of mark.mask = {:#x} ({}); give the labels values within the mask in \
             [{MARK_CLASS}]",
            beyond.join(", "),
            mark.mask,
            read.origin("mark.mask"),
        )
    })
}
