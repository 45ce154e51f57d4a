//! Rules that act on flows.

use std::path::PathBuf;

use crate::kind::Kind;
use crate::section;
use crate::setting::Setting;
use crate::words::words;

section! {
    /// Rules that act on flows, whether or not a model labels them.
    pub struct Policy = One "policy";

    /// a file of rules that say by addresses, ports, label and volume what is done with flows
    /// (docs/policy.md); a reload reads it again
    rules: Option<PathBuf> = live "rules", Kind::Text, "\"\"",
        "path, empty = none" => Setting::file;
    /// when rules that `fenxi ctl policy` adds or deletes count: at once, and until the next
    /// training such rules are found more slowly; or delayed until an index is trained with them,
    /// so that no flow is ever looked up more slowly
    update: PolicyUpdate = live "update", Kind::OneOf(PolicyUpdate::NAMES), "\"instant\"", "";
    /// the interface to which rules with mirror = "NAME" copy packets, in mode inline; rules give
    /// its name; it is an interface of the kernel, whatever io.backend is, and none of
    /// io.interfaces
    mirror: Option<String> = restart "mirror", Kind::Text, "\"\"",
        "name, empty = none" => Setting::word;
    /// profiles that are on from the start: rules with profile = "NAME" count while it is on, which
    /// `fenxi ctl policy profile` switches
    profiles: Vec<String> = restart "profiles", Kind::TextList { least: 0 }, "[]", "names";
}

words! {
    /// `policy.update`.
    pub enum PolicyUpdate {
        /// Changes of the rules count at once.
        #[default]
        Instant = "instant",
        /// They count once an index is trained with them.
        Delayed = "delayed",
    }
}
