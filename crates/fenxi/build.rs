//! Finds the revision that `fenxi --version` names: the variable `FENXI_REVISION`, else what
//! `git archive` wrote into `revision.txt`, else the commit of the checkout.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=FENXI_REVISION");
    println!("cargo::rerun-if-changed=revision.txt");
    println!("cargo::rerun-if-changed=build.rs");
    let named = std::env::var("FENXI_REVISION").ok();
    let revision = named.or_else(archived).or_else(committed);
    let suffix = revision.as_ref().map_or(String::new(), |revision| format!(" ({revision})"));
    let name = revision.as_deref().unwrap_or("unknown");
    println!("cargo::rustc-env=REVISION_NAME={name}");
    println!("cargo::rustc-env=REVISION_SUFFIX={suffix}");
}

/// `git archive` replaces the placeholder in `revision.txt`, which begins with `$`.
fn archived() -> Option<String> {
    let line = std::fs::read_to_string("revision.txt").ok()?;
    let line = line.trim();
    (!line.is_empty() && !line.starts_with('$')).then(|| line.to_owned())
}

/// Release builds only: otherwise each commit would compile the crate again.
fn committed() -> Option<String> {
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    // Another project's repository may hold an unpacked archive of this one.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let ours = Path::new(&top).join("crates/fenxi/build.rs");
    if ours.canonicalize().ok() != Path::new("build.rs").canonicalize().ok() {
        return None;
    }
    // The log of HEAD grows with every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
