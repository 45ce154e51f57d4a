//! The machine on which measurements were taken, as the kernel describes it.

use std::fs;

use flowmgr::Pages;
use serde::Serialize;

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
        let memory = field("/proc/meminfo", "MemTotal");
        let memory_kib: Option<u64> = memory.split(' ').next().and_then(|kib| kib.parse().ok());
        Machine {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: cores(),
            caches: (0..8).map_while(cache).collect(),
            memory_mib: memory_kib.unwrap_or_default() / 1024,
            kernel: read("/proc/sys/kernel/osrelease"),
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

fn cache(index: usize) -> Option<String> {
    let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
    let part = |name| fs::read_to_string(format!("{path}/{name}")).ok();
    let kind = match part("type")?.trim() {
        "Data" => "d",
        "Instruction" => "i",
        _ => "",
    };
    let (level, size) = (part("level")?, part("size")?);
    Some(format!("L{}{kind} {}", level.trim(), size.trim()))
}

/// The value of the first line `name : value` of a file, or an empty text.
fn field(path: &str, name: &str) -> String {
    let text = read(path);
    let value = text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    });
    value.unwrap_or_default()
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}
