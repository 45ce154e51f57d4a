//! The systemd unit of fenxi: its name, and the commands that grant it capabilities.

use std::fs;
use std::path::{Path, PathBuf};

use packetio::Backend;

/// The unit of the service for /etc/fenxi/fenxi.toml.
pub const UNIT: &str = "fenxi.service";

/// A drop-in of the package.
#[derive(Debug, PartialEq, Eq)]
pub struct DropIn {
    name: &'static str,
    text: &'static str,
    /// What needs it.
    pub what: &'static str,
}

pub const MARK: DropIn = DropIn {
    name: "mark",
    text: include_str!("../../../packaging/systemd/mark.conf"),
    what: "marks, labels of connections and sets of nftables",
};

pub const FIRST: DropIn = DropIn {
    name: "first",
    text: include_str!("../../../packaging/systemd/first.conf"),
    what: "first packets",
};

impl DropIn {
    /// The drop-in that a backend needs.
    pub fn of_backend(backend: &Backend) -> Option<DropIn> {
        let packetio::backend::DropIn { name, text, what } = *backend.drop_in.as_ref()?;
        Some(DropIn { name, text, what })
    }

    /// The name of its file, such as `mark.conf`.
    pub fn file(&self) -> String {
        format!("{}.conf", self.name)
    }

    /// Where it lies for a unit.
    pub fn path(&self, unit: &str) -> PathBuf {
        folder(unit).join(self.file())
    }

    pub fn text(&self) -> &'static str {
        self.text
    }

    /// The capabilities that it grants, by name.
    pub fn capabilities(&self) -> impl Iterator<Item = &'static str> {
        let mut lines = self.text.lines();
        let names = lines.find_map(|line| line.strip_prefix("AmbientCapabilities="));
        names.unwrap_or_default().split_whitespace()
    }

    /// The command that installs it for a unit.
    pub fn install(&self, unit: &str) -> String {
        let is_setting = |line: &&str| !line.is_empty() && !line.starts_with(['#', '[']);
        let settings: Vec<&str> = self.text.lines().filter(is_setting).collect();
        install(unit, self.name, &settings)
    }

    /// The advice if this process lacks a capability of the drop-in; `None` if it is not a service.
    pub fn cure(&self) -> Option<String> {
        let unit = own()?;
        Some(format!(
            "{unit} lacks its drop-in {}; install it: {} && systemctl restart {unit}",
            self.file(),
            self.install(&unit)
        ))
    }
}

/// Where units of the administrator lie.
pub const UNITS: &str = "/etc/systemd/system";

/// The folder of a unit's drop-ins.
fn folder(unit: &str) -> PathBuf {
    Path::new(UNITS).join(format!("{unit}.d"))
}

/// The command that gives a unit a drop-in with these settings.
pub fn install(unit: &str, name: &str, settings: &[&str]) -> String {
    let folder = folder(unit);
    let folder = folder.display();
    let settings = settings.join("\\n");
    format!(
        "install -d {folder} && printf '[Service]\\n{settings}\\n' >{folder}/{name}.conf && \
        systemctl daemon-reload"
    )
}

/// The command that lets this program run without root.
pub fn set_capabilities(needs_admin: bool) -> String {
    let program = std::env::current_exe()
        .map_or_else(|_| "fenxi".to_owned(), |path| path.display().to_string());
    let admin = if needs_admin { "cap_net_admin," } else { "" };
    format!("setcap {admin}cap_net_raw+ep {program}")
}

/// The unit whose service reads this configuration file.
pub fn of_file(file: &Path) -> Option<String> {
    let name = file.strip_prefix("/etc/fenxi").ok()?.to_str()?;
    match name.strip_suffix(".toml")? {
        "fenxi" => Some(UNIT.to_owned()),
        name if name.contains('/') => None,
        instance => Some(format!("fenxi@{instance}.service")),
    }
}

/// The unit whose main process this is.
fn own() -> Option<String> {
    let started = std::env::var("SYSTEMD_EXEC_PID").ok()?;
    if started != std::process::id().to_string() {
        return None;
    }
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(of_groups(&groups).unwrap_or(UNIT).to_owned())
}

/// The unit of a process, by its control groups.
fn of_groups(groups: &str) -> Option<&str> {
    let mut groups = groups.lines();
    let own = groups.find(|line| line.starts_with("0::") || line.contains(":name=systemd:"))?;
    let (_, unit) = own.rsplit_once('/')?;
    unit.ends_with(".service").then_some(unit)
}

/// Whether the settings of a unit and its drop-ins grant a capability; true if that is unclear.
pub fn grants(settings: &str, capability: &str) -> bool {
    let of = |key: &str| {
        let mut granted = None;
        for line in settings.lines() {
            let value = line.trim().strip_prefix(key);
            let Some(value) = value.and_then(|value| value.strip_prefix('=')) else { continue };
            let has = value.starts_with('~') || value.split_whitespace().any(|it| it == capability);
            // An empty value revokes the ones before it.
            granted = Some(!value.is_empty() && (has || granted == Some(true)));
        }
        granted
    };
    let mut users = settings.lines().rev();
    let user = users.find_map(|line| line.trim().strip_prefix("User="));
    let is_root = matches!(user, None | Some("root" | "0" | ""));
    of("CapabilityBoundingSet").unwrap_or(true)
        && (is_root || of("AmbientCapabilities").unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xdp() -> DropIn {
        DropIn::of_backend(Backend::parse("af_xdp").unwrap()).unwrap()
    }

    #[test]
    fn a_drop_in_is_installed_with_its_settings() {
        let expected = "install -d /etc/systemd/system/fenxi@a.service.d && printf '[Service]\\n\
                        AmbientCapabilities=CAP_NET_ADMIN\\n\
                        CapabilityBoundingSet=CAP_NET_ADMIN\\n' \
                        >/etc/systemd/system/fenxi@a.service.d/mark.conf && systemctl \
                        daemon-reload";
        assert_eq!(MARK.install("fenxi@a.service"), expected);
        let of_xdp: Vec<&str> = xdp().capabilities().collect();
        assert_eq!(of_xdp, ["CAP_BPF", "CAP_IPC_LOCK", "CAP_NET_ADMIN"]);
        assert!(set_capabilities(true).starts_with("setcap cap_net_admin,cap_net_raw+ep /"));
    }

    #[test]
    fn files_and_processes_have_units() {
        let of = |file: &str| of_file(Path::new(file));
        assert_eq!(of("/etc/fenxi/fenxi.toml").as_deref(), Some(UNIT));
        assert_eq!(of("/etc/fenxi/lan0.toml").as_deref(), Some("fenxi@lan0.service"));
        for other in ["fenxi.toml", "/etc/fenxi/conf.d/a.toml", "/etc/fenxi/a"] {
            assert_eq!(of(other), None, "{other}");
        }
        let v1 = "2:cpu:/a.service\n1:name=systemd:/system.slice/fenxi.service\n";
        assert_eq!(of_groups(v1), Some("fenxi.service"));
        let v2 = "0::/system.slice/system-fenxi.slice/fenxi@lan0.service\n";
        assert_eq!(of_groups(v2), Some("fenxi@lan0.service"));
        assert_eq!(of_groups("0::/user.slice/session-1.scope\n"), None);
    }

    #[test]
    fn grants_of_a_unit_and_its_drop_ins() {
        let unit = include_str!("../../../packaging/systemd/fenxi.service");
        let admin = |more: &str| grants(&format!("{unit}\n{more}"), "CAP_NET_ADMIN");
        assert!(grants(unit, "CAP_NET_RAW") && !admin(""));
        assert!(admin(MARK.text) && admin(xdp().text));
        assert!(!admin("AmbientCapabilities=CAP_NET_ADMIN"), "the bounding set lacks it");
        assert!(!admin(&format!("{}\nAmbientCapabilities=", MARK.text)));
        assert!(!admin("# AmbientCapabilities=CAP_NET_ADMIN, CAP_NET_ADMIN"));
        assert!(!admin("User=root"), "the bounding set lacks it");
        assert!(admin("User=root\nCapabilityBoundingSet=CAP_NET_ADMIN"));
    }
}
