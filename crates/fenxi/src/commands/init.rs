//! `fenxi init`: writes a first configuration from three answers, and prints what to do next.

mod ask;
mod text;

use std::fs::{self, File, Metadata, Permissions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use config::suggest;
use packetio::interface;

use crate::cli::{InitArgs, Link, Want};
use crate::exit::{Failure, print};
use crate::memory;
use crate::proc::Machine;
use crate::service_unit::{MARK, UNITS, of_file};

/// The configuration of the package. As long as nobody has changed it, it may be replaced.
const SHIPPED: &str = include_str!("../../../../packaging/fenxi.toml");

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
    /// Whether that one is there.
    pub has_shaper: bool,
}

impl Service {
    /// `None` without systemd, or if no service reads this file.
    fn of_file(file: &Path) -> Option<Service> {
        let unit = of_file(file).filter(|_| Path::new("/run/systemd/system").is_dir())?;
        let mut service = Service::new(&unit);
        service.has_shaper = service.path_of_shaper().exists();
        Some(service)
    }

    fn new(unit: &str) -> Service {
        let unit = unit.trim_end_matches(".service");
        let shaper = unit.replacen("fenxi", "fenxi-shaper", 1);
        Service { unit: unit.to_owned(), shaper, has_shaper: false }
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
    let mut files = vec![(args.file.clone(), sealed(&configuration), 0o644)];
    if answers.want == Want::Shape {
        let folder = args.file.with_file_name("shaper");
        let own =
            |(name, text, mode): (&str, &str, u32)| (folder.join(name), text.to_owned(), mode);
        files.extend(SHAPER.map(own));
        if let Some(service) = &mut service {
            let drop_in = MARK.path(&format!("{}.service", service.unit));
            if !drop_in.exists() {
                files.push((drop_in, MARK.text().to_owned(), 0o644));
            }
            let shaper = text::shaper(&answers, &args.file, &roles);
            service.has_shaper = shaper.is_some();
            files.extend(shaper.map(|text| (service.path_of_shaper(), sealed(&text), 0o644)));
        }
    }
    for (path, text, _) in &files[1..] {
        refuse_existing(path, text)?;
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(|error| creating(folder, &error))?;
    }
    // The configuration comes last, so that it never names files that are missing.
    for (path, text, mode) in files.iter().rev() {
        write(path, text, *mode)?;
    }
    let paths: Vec<String> = files.iter().map(|(path, ..)| path.display().to_string()).collect();
    let next = text::next(&answers, &args.file, &roles, service.as_ref());
    print(&format!("written: {}\n\nnext, as root:\n{next}", paths.join(", ")))
}

/// The text below a line with its checksum, by which a later `fenxi init` knows that nobody has
/// changed it.
fn sealed(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    let sum = hasher.finish();
    format!(
        "# As long as nobody changes it, `fenxi init` may replace this file: {sum:016x}\n{text}"
    )
}

fn is_sealed(found: &str) -> bool {
    found.split_once('\n').is_some_and(|(_, text)| sealed(text) == found)
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
}
