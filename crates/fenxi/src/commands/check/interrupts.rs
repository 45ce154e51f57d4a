//! Interrupts of a network card, which can take the CPU away from the thread that reads its frames.

use super::cores::placed;
use super::finding::Finding;
use super::machine::Machine;
use dataplane::placement::Cores;

const CHECK: &str = "interrupts";

pub fn findings(machine: &Machine, name: &str, cores: &Cores) -> Vec<Finding> {
    let pinned = placed(cores);
    let shared = active(machine, name).into_iter().filter_map(|interrupt| {
        let cpus = ["effective_affinity_list", "smp_affinity_list"]
            .iter()
            .find_map(|file| machine.list(&format!("proc/irq/{interrupt}/{file}")))?;
        let (thread, core) = pinned.iter().find(|(_, core)| cpus.contains(core))?;
        let cause = format!(
            "interrupt {interrupt} of {name} is handled on CPU {core}, where {thread} is pinned"
        );
        let mut online = machine.online_cpus().into_iter();
        let free = online.find(|cpu| pinned.iter().all(|(_, core)| core != cpu));
        let line = free.map(|cpu| format!("echo {cpu} > /proc/irq/{interrupt}/smp_affinity_list"));
        Some(Finding::warning(CHECK, name, cause).cure_if(line))
    });
    let shared: Vec<Finding> = shared.collect();
    match (shared.is_empty(), pinned.is_empty()) {
        (false, _) => shared,
        (true, false) => {
            vec![Finding::ok(CHECK, name, "none on the cores of the data path")]
        }
        (true, true) => Vec::new(),
    }
}

/// Interrupts of the card that have fired at least once.
fn active(machine: &Machine, name: &str) -> Vec<u32> {
    let text = machine.text("proc/interrupts").unwrap_or_default();
    let device = format!("sys/class/net/{name}/device");
    // A virtio card is a child of the PCI device that has the interrupts.
    let folders = [format!("{device}/msi_irqs"), format!("{device}/../msi_irqs")];
    let of_device: Vec<String> = folders.iter().flat_map(|path| machine.names(path)).collect();
    let rows = text.lines().filter_map(|line| {
        let (number, rest) = line.trim().split_once(':')?;
        let interrupt: u32 = number.parse().ok()?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let mut counts = fields.iter().map_while(|field| field.parse::<u64>().ok());
        let came = counts.any(|count| count > 0);
        let action = fields.last()?;
        let is_named = action
            .strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':']));
        (came && (is_named || of_device.iter().any(|known| known == number))).then_some(interrupt)
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::machine;
    use super::*;
    use config::Config;

    const INTERRUPTS: &str = "           CPU0       CPU1
 37:          0          0 PCI-MSIX-0000:00:03.0   0-edge      virtio2-config
 38:          0       3057 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 40:          1          0 PCI-MSIX-0000:00:04.0   0-edge      eth1-rx-0
NMI: 0 0 Non-maskable interrupts";

    fn pinned(core: &str) -> Cores {
        let config = Config::load(None, &[format!("pipeline.cores=[{core}, 5]")]).unwrap();
        Cores::of(&config)
    }

    #[test]
    fn a_flow_manager_on_the_cpu_of_an_interrupt() {
        let (_dir, virtio) = machine(&[
            ("proc/interrupts", INTERRUPTS),
            ("sys/devices/virtio2/net/eth0/flags", "0x1003"),
            ("sys/devices/msi_irqs/37", "msix"),
            ("sys/devices/msi_irqs/38", "msix"),
            ("sys/class/net/eth0/device", "->../../../devices/virtio2"),
            ("proc/irq/38/effective_affinity_list", "1\n"),
            ("sys/devices/system/cpu/online", "0-1\n"),
        ]);
        assert_eq!(active(&virtio, "eth0"), [38]);
        assert_eq!(active(&virtio, "eth1"), [40]);
        assert!(active(&virtio, "eth").is_empty());
        let found = findings(&virtio, "eth0", &pinned("1"));
        assert_eq!(found.len(), 1);
        assert!(found[0].cause.ends_with("where flow-0.0 is pinned"), "{found:?}");
        assert_eq!(found[0].remedy.as_deref(), Some("echo 0 > /proc/irq/38/smp_affinity_list"));
        assert!(findings(&virtio, "eth0", &pinned("0"))[0].cause.starts_with("none"));
    }
}
