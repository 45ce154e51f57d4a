//! Where the programs under test lie.
//!
//! Cargo builds the program of the package whose tests run, and says where it is.
//! `scripts/test/run` has built all programs and names their folder. Otherwise the program of
//! another package may be missing or out of date, in which case it is built here, once per test
//! binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `fenxi`.
pub fn fenxi() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    match option_env!("CARGO_BIN_EXE_fenxi") {
        Some(path) => path.into(),
        None => BUILT.get_or_init(|| built("fenxi", "fenxi")).clone(),
    }
}

/// `fenxi-lab`.
pub fn fenxi_lab() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    match option_env!("CARGO_BIN_EXE_fenxi-lab") {
        Some(path) => path.into(),
        None => BUILT.get_or_init(|| built("lab", "fenxi-lab")).clone(),
    }
}

/// The program of another package, as cargo puts it two folders above this test:
/// `PROFILE/deps/TEST`.
fn built(package: &str, program: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("BUILT_PROGRAMS") {
        return Path::new(&folder).join(program);
    }
    let test = std::env::current_exe().expect("a path");
    let folder = test.ancestors().nth(2).expect("the folder of the profile");
    let path = folder.join(program);
    // Cargo would find it fresh as well. But it takes the features of this package alone, with
    // which it may have to build everything once more.
    if is_fresh(&path) {
        return path;
    }
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", package]);
    cargo.args(["--profile", profile, "--target-dir"]);
    cargo.arg(folder.parent().expect("the target folder"));
    cargo.current_dir(super::root());
    let status = cargo.status().expect("cargo starts");
    assert!(status.success(), "{package} is not built");
    path
}

/// Whether the program is newer than all of its sources, which cargo lists in a file with the
/// ending `d`, in the form of make.
fn is_fresh(program: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let (Some(at), Ok(list)) = (modified(program), fs::read_to_string(program.with_extension("d")))
    else {
        return false;
    };
    let sources = list.split_once(": ").map_or("", |(_, sources)| sources);
    // A source that was removed or renamed makes the program outdated, too.
    let is_older = |source: &str| modified(Path::new(source)).is_some_and(|it| it <= at);
    !sources.is_empty() && sources.split_whitespace().all(is_older)
}
