//! Checks that no output of a replay is one of its inputs, and that its outputs are different
//! files.
//!
//! This is checked before anything is created, since creating an output empties it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use config::Config;

use crate::cli::{ReplayArgs, is_dash};
use crate::exit::Failure;
use crate::history;
use crate::sinks::ipfix::{Destination, IpfixKeys};

/// Refuses outputs that would destroy an input or each other.
///
/// # Errors
/// 64, with the option and the file.
pub fn check(args: &ReplayArgs, config: &Config) -> Result<(), Failure> {
    let flows = args.output.flows.as_deref().filter(|output| !is_dash(output));
    let write = args.write.as_deref();
    let to = config.section::<IpfixKeys>().to;
    let ipfix = match &to {
        Some(Destination::File(path)) => Some(path.as_path()),
        _ => None,
    };
    let history = config.section::<history::Keys>().path;
    let history = ("history.path", history.as_deref());
    let outputs = [("--flows", flows), ("--write", write), ("--ipfix", ipfix), history];
    for (option, output) in outputs {
        let Some(output) = output else { continue };
        if args.files.iter().any(|input| is_same(input, output)) {
            return Err(Failure::usage(format!(
                "{option} {}: this is one of the captures to replay; choose another file",
                output.display()
            )));
        }
    }
    for (place, (option, output)) in outputs.into_iter().enumerate() {
        for (other, its_output) in &outputs[..place] {
            if let (Some(output), Some(its_output)) = (output, its_output)
                && is_same(output, its_output)
            {
                return Err(Failure::usage(format!(
                    "{other} and {option} both name {}",
                    its_output.display()
                )));
            }
        }
    }
    Ok(())
}

/// Whether two paths lead to the same file, through any links; or would create the same file.
/// Devices such as `/dev/null` do not count, since writing does not destroy them.
fn is_same(a: &Path, b: &Path) -> bool {
    let of = |path: &Path| -> Option<Metadata> {
        let path = if is_dash(path) { Path::new("/dev/stdin") } else { path };
        path.metadata().ok()
    };
    match (of(a), of(b)) {
        (Some(a), Some(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (None, None) => target(a).is_some_and(|a| Some(a) == target(b)),
        _ => false,
    }
}

/// The path of a file to be created, without links and dots.
fn target(path: &Path) -> Option<PathBuf> {
    let folder = match path.parent()? {
        folder if folder.as_os_str().is_empty() => Path::new("."),
        folder => folder,
    };
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_by_two_names() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, other] = ["file", "link", "other"].map(|name| dir.path().join(name));
        for path in [&file, &other] {
            std::fs::write(path, "").unwrap();
        }
        std::fs::hard_link(&file, &link).unwrap();
        assert!(is_same(&file, &link));
        assert!(!is_same(&file, &other));
        assert!(!is_same(Path::new("/dev/null"), Path::new("/dev/null")));
    }

    #[test]
    fn one_file_that_is_not_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("new");
        assert!(is_same(&new, &dir.path().join(".").join("new")));
        assert!(!is_same(&new, &dir.path().join("newer")));
        assert!(is_same(Path::new("fenxi-new"), Path::new("./fenxi-new")));
    }
}
