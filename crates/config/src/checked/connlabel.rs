//! Labels of connections.

use std::path::PathBuf;

use crate::kind::{Entry, Kind, integer};
use crate::origin::Origin;
use crate::section;
use crate::setting::Setting;
use crate::settings::Settings;

section! {
    /// Labels of connections.
    pub struct Connlabel = One "connlabel", checked by check;

    /// mode mark and tap: label to label of the connection (ct label), of which a connection gets
    /// one; labels not named here leave connections as they are; a label may be a taxonomy
    class: Vec<ConnlabelMapping> = live "class", Kind::Map(Entry::Text), "{}",
        "a name in connlabel.file, or a number from 0 to 127 as text" => class;
    /// the file that names labels of connections; empty: /etc/connlabel.conf, which nft reads, or
    /// /etc/xtables/connlabel.conf
    file: Option<PathBuf> = restart "file", Kind::Text, "\"\"", "path" => Setting::file;
    /// whether a label takes the place of one of connlabel.class that the connection has already;
    /// false: that one stays
    overwrite: bool = live "overwrite", Kind::Bool, "false", "";
    /// how many labels may wait to be written; more are dropped and counted
    queue: usize = restart "queue", integer(64, 1 << 20), "16384", "updates";
}

/// One entry of `connlabel.class`.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnlabelMapping {
    /// Label of the model, or a taxonomy.
    pub label: String,
    /// Label of the connection: its name or its number.
    pub connlabel: String,
    /// Where the entry was set.
    pub origin: Origin,
}

fn class(setting: &Setting) -> Result<Vec<ConnlabelMapping>, String> {
    setting.rows(|label, connlabel, entry| ConnlabelMapping {
        label: label.to_owned(),
        connlabel,
        origin: entry.origin.clone(),
    })
}

fn check(settings: &Settings, problems: &mut Vec<String>) {
    let has_labels = !settings.setting("connlabel.class").entries.is_empty();
    settings.rule(
        &["connlabel.class", "io.mode"],
        has_labels && settings.word("io.mode") == "inline",
        "impossible combination: inline forwards past the kernel, which has no connections to \
         label; use mode mark, or leave the table out",
        problems,
    );
}
