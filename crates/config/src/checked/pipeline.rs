//! Threads and what is between them.

use crate::kind::{Kind, integer, power_of_two};
use crate::layout::{Layout, PARTS_MAX};
use crate::section;
use crate::setting::Setting;

section! {
    /// The ring from flow manager to analytics manager.
    pub struct Ring = One "ring";

    /// how many series may wait between a flow manager and an analytics manager
    slots: usize = restart "slots", power_of_two(16, 1 << 20), "4096", "series";
}

section! {
    /// Threads.
    pub struct Pipeline = One "pipeline";

    /// threads of a pipeline, each number from 1 to 64; F:0:0: flow managers label inline, on the
    /// device native; auto: 1:0:0 where native runs the models and a row is quick, otherwise 1:1:1
    layout: Layout = restart "layout", Kind::Text, "\"auto\"",
        "flow managers : analytics managers : devices, or auto" => layout;
    /// pipelines side by side, each with the whole layout; flows are distributed by RSS hash
    instances: usize = restart "instances", integer(1, 64), "1", "pipelines";
    /// where threads are pinned: flow managers, then analytics managers, then device threads,
    /// pipeline by pipeline; empty: automatic
    cores: Vec<usize> = restart "cores",
        Kind::IntegerList { least: 0, min: 0, max: 4095, most: 4096 }, "[]", "CPU numbers";
}

fn layout(setting: &Setting) -> Result<Layout, String> {
    Layout::parse(&setting.get::<String>()?).ok_or_else(|| {
        format!(
            "expected a layout F:A:D of three numbers from 1 to {PARTS_MAX}, such as 1:1:1, or \
             F:0:0, or auto"
        )
    })
}

section! {
    /// The process of a live run.
    pub struct Process = One "process";

    /// whether `fenxi run` drops all rights that it no longer needs after its start: capabilities,
    /// new programs, new TCP, and writing outside the folders of records, profiles and sockets
    sandbox: bool = restart "sandbox", Kind::Bool, "true", "";
}
