//! Which outputs a replay may write to: none that is one of its inputs, and not both to one file.
//!
//! Looked at before anything is created, since creating an output empties it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cli::{ReplayArgs, is_dash};
use crate::exit::Failure;

/// Refuses outputs that would destroy an input or each other.
///
/// # Errors
/// 64, with the option and the file.
pub fn check(args: &ReplayArgs) -> Result<(), Failure> {
    let flows = args
        .output
        .flows
        .as_deref()
        .filter(|output| !is_dash(output));
    let write = args.write.as_deref();
    for (option, output) in [("--flows", flows), ("--write", write)] {
        let Some(output) = output else { continue };
        if args.files.iter().any(|input| is_same(input, output)) {
            return Err(Failure::usage(format!(
                "{option} {}: this is one of the captures to replay; choose another file",
                output.display()
            )));
        }
    }
    if let (Some(flows), Some(write)) = (flows, write)
        && is_same(flows, write)
    {
        return Err(Failure::usage(format!(
            "--flows and --write both name {}",
            flows.display()
        )));
    }
    Ok(())
}

/// Whether two paths lead to one file, by whatever links; where it is not there yet, whether they
/// would create one. Devices such as `/dev/null` are no files that could be destroyed.
fn is_same(a: &Path, b: &Path) -> bool {
    let of = |path: &Path| -> Option<Metadata> {
        let path = if is_dash(path) {
            Path::new("/dev/stdin")
        } else {
            path
        };
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
