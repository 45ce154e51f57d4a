//! The machine on which measurements were taken, as the kernel describes it.

use flowmgr::Pages;
use serde::Serialize;

use crate::memory::MIB;
use crate::proc;

/// The machine, as named next to every measurement.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// CPU model.
    pub cpu: String,
    /// Cores that the program may use.
    pub cores: usize,
    /// Caches of the first core, as in `L2 1024K`.
    pub caches: Vec<String>,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Memory pages of the flow tables.
    pub pages: &'static str,
}

impl Machine {
    /// Describes this machine; `pages` is the kind of pages of the flow tables.
    pub fn here(pages: Pages) -> Machine {
        let files = proc::Machine::here();
        let memory = files.bytes("proc/meminfo", "MemTotal").unwrap_or_default();
        Machine {
            cpu: files.field("proc/cpuinfo", "model name").unwrap_or_default(),
            cores: cores(),
            caches: (0..8).map_while(|index| cache(&files, index)).collect(),
            memory_mib: memory / MIB,
            kernel: files.text("proc/sys/kernel/osrelease").unwrap_or_default(),
            pages: match pages {
                Pages::Plain => "plain",
                Pages::Transparent => "transparent huge",
                Pages::Huge => "huge",
            },
        }
    }

    /// In one line.
    pub fn line(&self) -> String {
        format!(
            "{}, {} cores, {}, {} MiB, Linux {}, {} pages",
            self.cpu,
            self.cores,
            self.caches.join(", "),
            self.memory_mib,
            self.kernel,
            self.pages
        )
    }
}

/// Cores that the program may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn cache(files: &proc::Machine, index: usize) -> Option<String> {
    let part = |name| files.text(&format!("sys/devices/system/cpu/cpu0/cache/index{index}/{name}"));
    let kind = match part("type")?.as_str() {
        "Data" => "d",
        "Instruction" => "i",
        _ => "",
    };
    Some(format!("L{}{kind} {}", part("level")?, part("size")?))
}
