//! What ships around the program: units that systemd takes and that are hardened, alert rules that
//! fire, and no metric named that is not there.

use crate::common;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn text(path: &str) -> String {
    std::fs::read_to_string(common::root().join(path)).expect(path)
}

/// Runs `program`; `None`, and a line that says so, if it is not installed.
fn tool(test: &str, program: &str, args: &[&str], dir: &Path) -> Option<(bool, String)> {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir);
    command.env("SYSTEMD_UNIT_PATH", format!("{}:", dir.display()));
    let Ok(output) = command.output() else {
        common::skip(test, program);
        return None;
    };
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn units_are_valid_and_hardened_with_each_drop_in() {
    let test = "units_are_valid_and_hardened_with_each_drop_in";
    for drop_in in [None, Some("mark"), Some("inline"), Some("bypass"), Some("gpu")] {
        let dir = tempfile::tempdir().expect("a folder");
        for unit in ["fenxi.service", "fenxi@.service"] {
            let unit_text = text(&format!("packaging/systemd/{unit}"));
            let ours = unit_text.replace("/usr/bin/fenxi", env!("CARGO_BIN_EXE_fenxi"));
            std::fs::write(dir.path().join(unit), ours).expect("a unit");
            if let Some(name) = drop_in {
                let folder = dir.path().join(format!("{unit}.d"));
                std::fs::create_dir(&folder).expect("a folder");
                let conf = text(&format!("packaging/systemd/{name}.conf"));
                let script = common::root().join("packaging/bypass");
                let conf = conf.replace("/usr/lib/fenxi/bypass", &script.display().to_string());
                std::fs::write(folder.join("mode.conf"), conf).expect("a drop-in");
            }
        }
        for unit in ["fenxi.service", "fenxi@.service"] {
            let path = dir.path().join(unit).display().to_string();
            let verify = tool(test, "systemd-analyze", &["verify", "--man=no", &path], dir.path());
            let Some((valid, said)) = verify else { return };
            assert!(valid && said.is_empty(), "{unit} {drop_in:?}: {said}");
            let args = ["security", "--offline=true", "--threshold=30", &path];
            let (hard, said) = tool(test, "systemd-analyze", &args, dir.path()).expect("as before");
            assert!(hard, "{unit} {drop_in:?}: {said}");
        }
    }
}

/// `@system-service` of systemd 252 lacks them, and without them files and TCP are not restricted.
#[test]
fn units_permit_landlock() {
    for unit in ["fenxi.service", "fenxi@.service"] {
        let text = text(&format!("packaging/systemd/{unit}"));
        let filters = text.lines().filter_map(|it| it.strip_prefix("SystemCallFilter="));
        let permitted: BTreeSet<&str> = filters.flat_map(str::split_whitespace).collect();
        for call in ["create_ruleset", "add_rule", "restrict_self"] {
            let call = format!("landlock_{call}");
            assert!(permitted.contains(call.as_str()), "{unit}: {call}");
        }
    }
}

#[test]
fn the_template_differs_from_the_unit_only_in_its_names() {
    let settings = |path: &str| -> BTreeSet<String> {
        let own = ["Description=", "Environment=", "ExecStart=", "ExecReload="];
        let unit = text(path);
        let lines = unit.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter(|line| !own.iter().any(|key| line.starts_with(key)))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        settings("packaging/systemd/fenxi.service"),
        settings("packaging/systemd/fenxi@.service")
    );
}

#[test]
fn the_telemetry_of_onnx_runtime_is_off_wherever_fenxi_starts() {
    for (path, line) in [
        ("systemd/fenxi.service", "Environment=ORT_DISABLE_TELEMETRY=1"),
        ("systemd/fenxi@.service", "Environment=ORT_DISABLE_TELEMETRY=1"),
        ("container/Containerfile", "ENV ORT_DISABLE_TELEMETRY=1"),
    ] {
        let file = text(&format!("packaging/{path}"));
        assert!(file.lines().any(|it| it == line), "{path}");
    }
}

#[test]
fn alerts_fire_when_they_should_and_not_else() {
    let dir = common::root().join("packaging/prometheus");
    let args = ["test", "rules", "alerts_test.yml"];
    if let Some((passed, said)) =
        tool("alerts_fire_when_they_should_and_not_else", "promtool", &args, &dir)
    {
        assert!(passed, "{said}");
    }
}

#[test]
fn every_metric_named_is_in_the_catalogue() {
    let page = text("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: BTreeSet<&str> = rows.collect();
    for path in ["packaging/prometheus/alerts.yml", "packaging/grafana/fenxi.json"] {
        let file = text(path);
        let words = file.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let named: BTreeSet<&str> = words.filter(|word| word.starts_with("fenxi_")).collect();
        assert!(named.len() > 8, "{path}: {named:?}");
        for name in named {
            let base = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            assert!(
                known.contains(base.unwrap_or(name)),
                "{path}: {name} is not in docs/metrics.md"
            );
        }
    }
}

/// The packages made of this build, and what they install, in a folder.
struct Packages {
    dir: tempfile::TempDir,
}

impl Packages {
    /// The package fenxi. None, and a line that says so, if a tool or the library is missing.
    fn build(test: &str) -> Option<Packages> {
        for program in ["dpkg-deb", "strip"] {
            tool(test, program, &["--version"], Path::new("/"))?;
        }
        if !common::has_onnxruntime() {
            common::skip(test, "ONNX Runtime (make onnxruntime)");
            return None;
        }
        let packages = Packages { dir: tempfile::tempdir().expect("a folder") };
        let fenxi = packages.deb("build", &["--program", env!("CARGO_BIN_EXE_fenxi")]);
        packages.unpack("--raw-extract", &fenxi);
        Some(packages)
    }

    /// Unpacks the package fenxi-onnxruntime, too.
    fn add_onnxruntime(&self) {
        let onnxruntime = self.deb("build-onnxruntime", &[]);
        self.unpack("--extract", &onnxruntime);
    }

    fn deb(&self, script: &str, more: &[&str]) -> String {
        let out = self.dir.path().display().to_string();
        let args = ["--compression", "none", "--version", "0.1.0-9", "--out", &out];
        let script = common::root().join("packaging/deb").join(script);
        let mut command = Command::new(script);
        let output = command.args(args).args(more).output().expect("a script");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    fn unpack(&self, how: &str, deb: &str) {
        let mut command = Command::new("dpkg-deb");
        let unpacked = command.args([how, deb]).arg(self.path("")).status();
        assert!(unpacked.expect("dpkg-deb").success(), "{deb}");
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("root").join(path)
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).expect(path)
    }

    /// The installed program, with an environment and a folder that tell it nothing.
    fn fenxi(&self, args: &[&str]) -> (i32, String) {
        let mut command = Command::new(self.path("usr/bin/fenxi"));
        command.env_clear().current_dir("/").args(args);
        let output = command.output().expect("the program");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
    }
}

#[test]
fn the_packages_work_from_where_they_are_unpacked() {
    let test = "the_packages_work_from_where_they_are_unpacked";
    let Some(package) = Packages::build(test) else {
        return;
    };
    let root = package.path("").display().to_string();
    // Model and library come from the packages, without any configuration.
    let (code, said) = package.fenxi(&["devices", "--device", "native"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = package.fenxi(&["devices", "--device", "cpu"]);
    assert!(code == 69 && said.contains("install the package fenxi-onnxruntime"), "{said}");
    package.add_onnxruntime();
    let (code, said) = package.fenxi(&["devices", "--device", "cpu"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.lines().any(|line| line.starts_with("library") && line.contains(&root)), "{said}");
    let demo = package.path("usr/share/fenxi/demo/office.pcap").display().to_string();
    let (code, said) = package.fenxi(&["replay", &demo]);
    assert!(code == 0 && said.contains("TLS 46"), "{code}: {said}");
    for model in ["protocol", "protocol-int8", "protocol-small", "iot-family", "app-id-k10"] {
        let dir = package.path("usr/share/fenxi/models").join(model).display().to_string();
        let (code, said) = package.fenxi(&["model", "info", &dir]);
        assert_eq!(code, 0, "{said}");
    }
    let config = package.path("etc/fenxi/fenxi.toml").display().to_string();
    let (code, said) = package.fenxi(&["check", "--config-only", "-c", &config]);
    assert_eq!(code, 0, "{said}");
    // Examples name models where the package has them, and scripts can be run.
    let examples = package.path("usr/share/doc/fenxi/examples");
    for example in ["configs/three-tasks.toml", "tasks/tasks.toml"] {
        let text = std::fs::read_to_string(examples.join(example)).expect(example);
        let installed = package.path("usr/share/fenxi/models");
        let text = text.replace("/usr/share/fenxi/models", installed.to_str().expect("a path"));
        std::fs::write(examples.join(example), text).expect(example);
        let config = examples.join(example).display().to_string();
        let (code, said) = package.fenxi(&["check", "--config-only", "-c", &config]);
        assert_eq!(code, 0, "{example}: {said}");
    }
    for script in [
        "tasks/try",
        "shaper/shaper",
        "bulk-last/try",
        "services/run",
        "configs/policy/make-subscribers",
    ] {
        let mode = std::fs::metadata(examples.join(script)).expect(script);
        assert_eq!(mode.permissions().mode() & 0o777, 0o755, "{script}");
    }
    // What the unit refers to is installed.
    for unit in ["fenxi.service", "fenxi@.service"] {
        let unit = package.text(&format!("usr/lib/systemd/system/{unit}"));
        let documents =
            unit.lines().find_map(|line| line.strip_prefix("Documentation=")).expect("documents");
        for document in documents.split(' ') {
            let file = match document.strip_prefix("file:///") {
                Some(file) => file.to_owned(),
                None => {
                    let page = document.strip_prefix("man:").expect(document);
                    let (name, section) = page.trim_end_matches(')').split_once('(').expect(page);
                    format!("usr/share/man/man{section}/{name}.{section}.gz")
                }
            };
            assert!(package.path(&file).is_file(), "{document}");
        }
    }
    // Without a file for logrotate: fenxi rotates its records itself, and both must not.
    assert_eq!(package.text("DEBIAN/conffiles"), "/etc/fenxi/fenxi.toml\n");
    assert!(!package.path("etc/logrotate.d").exists());
    assert!(examples.join("logrotate.d/fenxi").is_file());
    let (code, said) = package.fenxi(&["config", "show", "--all", "-c", &config]);
    let rotates = said.lines().any(|line| line.starts_with("rotate_mib = 256"));
    assert!(code == 0 && rotates, "{said}");
    assert!(package.text("DEBIAN/control").contains("\nVersion: 0.1.0-9\n"));
    for script in [
        "DEBIAN/postinst",
        "DEBIAN/prerm",
        "DEBIAN/postrm",
        "usr/share/bash-completion/completions/fenxi",
    ] {
        let path = package.path(script).display().to_string();
        let shell = if script.starts_with("DEBIAN") { "sh" } else { "bash" };
        let (valid, said) = tool(test, shell, &["-n", &path], Path::new("/")).expect("a shell");
        assert!(valid && said.is_empty(), "{script}: {said}");
    }
}

#[test]
fn man_pages_are_well_formed() {
    let test = "man_pages_are_well_formed";
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().display().to_string();
    common::run(common::fenxi(["manual", &out])).expect_code(0);
    let mut pages = 0;
    for entry in std::fs::read_dir(dir.path().join("man")).expect("pages") {
        let path = entry.expect("a page").path().display().to_string();
        let args = ["--warnings=all", "--local-file", "-Tutf8", "-Z", &path];
        let mut command = Command::new("man");
        command.args(args).env("LC_ALL", "C.UTF-8").stdout(std::process::Stdio::null());
        let Ok(output) = command.output() else {
            return common::skip(test, "man (package man-db)");
        };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.is_empty(), "{path}: {said}");
        pages += 1;
    }
    assert!(pages > 15, "{pages}");
}
