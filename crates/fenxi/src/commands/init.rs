//! `fenxi init`: writes a first configuration from three answers, and prints what to do next.

mod ask;
mod text;

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use config::suggest;
use packetio::interface;
use sha1::{Digest, Sha1};

use crate::cli::{InitArgs, Link, Want};
use crate::exit::{Failure, print};
use crate::memory;
use crate::proc::Machine;
use crate::service_unit::{MARK, UNITS, of_file};

/// The configuration of the package. As long as nobody has changed it, it may be replaced.
const SHIPPED: &str = include_str!("../../../../packaging/fenxi.toml");

/// Before the checksum by which a later `fenxi init`, and a purge of the package, know that nobody
/// has changed a file.
const SEAL: &str =
    "# Written by `fenxi init`, which replaces it only while this checksum matches: ";

/// No file that is written here is as long, bytes.
const LENGTH_MAX: u64 = 1 << 16;

/// The files of the shaper that a configuration needs, with their modes.
const SHAPER: [(&str, &str, u32); 3] = [
    ("rules.toml", include_str!("../../../../examples/shaper/rules.toml"), 0o644),
    ("shaper.nft", include_str!("../../../../examples/shaper/shaper.nft"), 0o644),
    ("shaper", include_str!("../../../../examples/shaper/shaper"), 0o755),
];

/// The three answers.
#[derive(Debug, Clone)]
pub struct Answers {
    pub want: Want,
    pub interface: String,
    pub link: Link,
}

/// The service of a configuration, by its names.
pub struct Service {
    pub unit: String,
    /// The unit that shapes the link.
    pub shaper: String,
    /// Whether that one was there before, for other interfaces maybe.
    pub had_shaper: bool,
    /// Whether that one is written now.
    pub has_shaper: bool,
}

impl Service {
    /// `None` without systemd, or if no service reads this file.
    fn of_file(file: &Path) -> Option<Service> {
        let unit = of_file(file).filter(|_| Path::new("/run/systemd/system").is_dir())?;
        let mut service = Service::new(&unit);
        service.had_shaper = service.path_of_shaper().exists();
        Some(service)
    }

    fn new(unit: &str) -> Service {
        let unit = unit.trim_end_matches(".service");
        let shaper = unit.replacen("fenxi", "fenxi-shaper", 1);
        Service { unit: unit.to_owned(), shaper, had_shaper: false, has_shaper: false }
    }

    fn path_of_shaper(&self) -> PathBuf {
        Path::new(UNITS).join(format!("{}.service", self.shaper))
    }
}

/// Asks what the options leave open, writes the files, and prints the next commands.
///
/// # Errors
/// 64 if an answer is missing and nobody can be asked, 69 if there is no such interface, 73 or 77
/// if a file cannot be written. Files that somebody wrote or changed are never replaced.
pub fn init(args: &InitArgs) -> Result<(), Failure> {
    let machine = Machine::here();
    let known: Vec<String> = interface::names().into_iter().filter(|name| name != "lo").collect();
    refuse_existing(&args.file, SHIPPED)?;
    let answers = ask::answers(args, &machine, &known)?;
    if !known.contains(&answers.interface) {
        let Answers { interface, .. } = &answers;
        let near = suggest(interface, known.iter().map(String::as_str));
        let known = known.join(", ");
        return Err(Failure::unavailable(format!(
            "--interface {interface}: no such interface; there are: {known}{near}"
        )));
    }
    let roles = text::Roles::find(&answers, &machine, &known);
    let mut service = Service::of_file(&args.file);
    let configuration = text::configuration(&answers, memory::total(&machine));
    let mut files = vec![(args.file.clone(), configuration, 0o644)];
    if answers.want == Want::Shape {
        let folder = args.file.with_file_name("shaper");
        let own =
            |(name, text, mode): (&str, &str, u32)| (folder.join(name), text.to_owned(), mode);
        files.extend(SHAPER.map(own));
        if let Some(service) = &mut service {
            let drop_in = MARK.path(&format!("{}.service", service.unit));
            // The operator's own may grant more, and stays.
            if refuse_existing(&drop_in, &sealed(MARK.text())).is_ok() {
                files.push((drop_in, MARK.text().to_owned(), 0o644));
            }
            let shaper = text::shaper(&answers, &args.file, &roles);
            service.has_shaper = shaper.is_some();
            files.extend(shaper.map(|text| (service.path_of_shaper(), text, 0o644)));
        }
    }
    // Somebody may have changed it while the questions were open.
    refuse_existing(&args.file, SHIPPED)?;
    for (path, text, _) in &files[1..] {
        refuse_existing(path, text)?;
    }
    for (path, ..) in &files[1..] {
        create_folder(path.parent().unwrap_or(path))?;
    }
    // The configuration comes last, so that it never names files that are missing.
    for (path, text, mode) in files.iter().rev() {
        write(path, &sealed(text), *mode)?;
    }
    let paths: Vec<String> = files.iter().map(|(path, ..)| path.display().to_string()).collect();
    let next = text::next(&answers, &args.file, &roles, service.as_ref());
    print(&format!("written: {}\n\nnext, as root:\n{next}", paths.join(", ")))
}

/// The text with a line that holds its checksum: the first, or below `#!`.
fn sealed(text: &str) -> String {
    let sum = Sha1::digest(text);
    let sum: String = sum.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let interpreter = match text.starts_with("#!") {
        true => text.find('\n').map_or(0, |end| end + 1),
        false => 0,
    };
    let (interpreter, rest) = text.split_at(interpreter);
    format!("{interpreter}{SEAL}{sum}\n{rest}")
}

fn is_sealed(found: &str) -> bool {
    let lines = found.split_inclusive('\n').filter(|line| !line.starts_with(SEAL));
    sealed(&lines.collect::<String>()) == found
}

/// Refuses a file that is there, unless it has this text, or is as `fenxi init` left it.
fn refuse_existing(path: &Path, replaceable: &str) -> Result<(), Failure> {
    let is_ours = |found: Metadata| {
        // A pipe would have no end.
        if !found.is_file() || found.len() > LENGTH_MAX {
            return Ok(false);
        }
        let found = fs::read(path)?;
        let is_sealed = str::from_utf8(&found).is_ok_and(is_sealed);
        Ok(is_sealed || found == replaceable.as_bytes())
    };
    match fs::symlink_metadata(path).and_then(is_ours) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(false) => Err(Failure::cannot_create(format!(
            "{}: exists, and is not replaced; move it away, or name another file",
            path.display()
        ))),
        Err(error) => Err(creating(path, &error)),
    }
}

/// Makes a folder and those above it, open to the user of the service whatever the umask is.
fn create_folder(folder: &Path) -> Result<(), Failure> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    for folder in missing.into_iter().rev() {
        fs::create_dir(folder)
            .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755)))
            .map_err(|error| creating(folder, &error))?;
    }
    Ok(())
}

/// Writes a file whole, or leaves what was there.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // One that is there is somebody else's.
    let mut file = File::create_new(&new).map_err(|error| creating(&new, &error))?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&new, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&new);
        creating(path, &error)
    })
}

fn creating(path: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::PermissionDenied => Failure::not_allowed(format!(
            "{}: permission denied; run as root, or name a file of your own",
            path.display()
        )),
        _ => Failure::creating(path, error),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_new_file_of_somebody_else_is_named_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("fenxi.toml"), dir.path().join("fenxi.toml.new"));
        fs::write(&new, "mine").unwrap();
        let refused = write(&path, "text", 0o644).unwrap_err().to_string();
        assert!(refused.contains("fenxi.toml.new: "), "{refused}");
        assert_eq!(fs::read(&new).unwrap(), b"mine");
        assert!(!path.exists());
        fs::remove_file(&new).unwrap();
        write(&path, "text", 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!new.exists());
        // A folder cannot be replaced; nothing is left beside it.
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        assert!(write(&folder, "text", 0o644).is_err());
        assert!(!dir.path().join("folder.new").exists());
    }

    #[test]
    fn an_unchanged_file_of_another_release_is_replaced() {
        // By `printf 'a\nb\n' | sha1sum`: every release has the same sums.
        assert_eq!(sealed("a\nb\n"), format!("{SEAL}05dec960e24d918b\na\nb\n"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shaper");
        for (_, text, _) in SHAPER {
            let old = sealed(&format!("{text}# An old line.\n"));
            assert_eq!(old.starts_with("#!"), text.starts_with("#!"));
            fs::write(&path, &old).unwrap();
            assert!(refuse_existing(&path, text).is_ok(), "{old}");
            fs::write(&path, old.replace("An old", "My")).unwrap();
            assert!(refuse_existing(&path, text).is_err(), "{old}");
        }
    }

    #[test]
    fn a_purge_of_the_package_knows_its_files() {
        let root = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = root.path().join(name);
            create_folder(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        let (own, edited) = (sealed("[Service]\n"), sealed("[Service]\n") + "Nice=1\n");
        let gone = [
            file("etc/systemd/system/fenxi-shaper.service", &own),
            file("etc/systemd/system/fenxi-shaper@a.service", &own),
            file("etc/systemd/system/fenxi.service.d/mark.conf", &own),
            file("etc/fenxi/shaper/rules.toml", &edited),
            file("var/lib/fenxi/flows.jsonl", "{}"),
        ];
        let kept = [
            file("etc/systemd/system/fenxi-shaper@b.service", &edited),
            file("etc/systemd/system/fenxi@a.service.d/mark.conf", MARK.text()),
            file("etc/systemd/system/fenxi@a.service.d/mine.conf", ""),
            file("etc/fenxi/conf.d/mine.toml", ""),
        ];
        let postrm = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/deb/postrm");
        let run = |what: &str| {
            let mut shell = Command::new("sh");
            shell.args([postrm, what]).env("DPKG_ROOT", root.path());
            assert!(shell.status().unwrap().success());
        };
        run("remove");
        assert!(gone.iter().chain(&kept).all(|path| path.exists()));
        // The other flavour is installed.
        let program = file("usr/bin/fenxi", "");
        run("purge");
        assert!(gone.iter().all(|path| path.exists()));
        fs::remove_file(program).unwrap();
        run("purge");
        for path in &gone {
            assert!(!path.exists(), "{}", path.display());
        }
        for path in &kept {
            assert!(path.exists(), "{}", path.display());
        }
        let folder = |name| root.path().join(name).exists();
        assert!(!folder("etc/fenxi/shaper") && !folder("etc/systemd/system/fenxi.service.d"));
    }
}
