//! The sets of rules that classifiers are compared on: generated ones, or filter files of
//! ClassBench.

use std::fs;
use std::path::{Path, PathBuf};

use policy::Filter;

use crate::cli::BenchArgs;
use crate::generate::rules::{Asked, SEEDS, file, generate};
use fenxi::exit::Failure;

/// Rules of a set, unless `--sizes` says otherwise.
const SIZES: [u32; 4] = [1_000, 10_000, 100_000, 500_000];

/// A set before it is made or read.
#[derive(Clone, Debug)]
pub struct Set {
    pub name: String,
    /// Rules, about.
    pub size: u32,
    file: Option<PathBuf>,
}

/// All sets that are asked for, by size.
///
/// # Errors
/// The folder cannot be read, or has no files.
pub fn asked(args: &BenchArgs) -> Result<Vec<Set>, Failure> {
    let mut sets = match &args.sets {
        Some(dir) => files(dir)?,
        None => generated(args),
    };
    sets.sort_by(|one, other| (one.size, &one.name).cmp(&(other.size, &other.name)));
    Ok(sets)
}

fn generated(args: &BenchArgs) -> Vec<Set> {
    let sizes = if args.sizes.is_empty() { &SIZES[..] } else { &args.sizes };
    let seeds = match args.seeds.is_empty() {
        true => SEEDS.map(str::to_owned).to_vec(),
        false => args.seeds.clone(),
    };
    let set = |name: &String, size| Set { name: name.clone(), size, file: None };
    seeds.iter().flat_map(|name| sizes.iter().map(move |&size| set(name, size))).collect()
}

/// All files of a folder. Their sizes are rounded to one digit, so that sets of about as many
/// rules stand together.
fn files(dir: &Path) -> Result<Vec<Set>, Failure> {
    let no_input = |error| Failure::no_input(format!("{}: {error}", dir.display()));
    let mut sets = Vec::new();
    for entry in fs::read_dir(dir).map_err(no_input)? {
        let path = entry.map_err(no_input)?.path();
        if !path.is_file() {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        sets.push(Set {
            name: name.into_owned(),
            size: rounded(file::read::<u32>(&path)?.len()),
            file: Some(path),
        });
    }
    match sets.is_empty() {
        true => Err(Failure::no_input(format!("{}: no files", dir.display()))),
        false => Ok(sets),
    }
}

fn rounded(rules: usize) -> u32 {
    let unit = 10_usize.pow(rules.max(1).ilog10());
    ((rules + unit / 2) / unit * unit) as u32
}

impl Set {
    /// Its rules.
    ///
    /// # Errors
    /// They cannot be made, or the file cannot be read.
    pub fn filters(&self) -> Result<Vec<Filter<u32>>, Failure> {
        match &self.file {
            Some(path) => file::read(path),
            None => generate(&Asked { seed: &self.name, rules: self.size as usize, random: 1 }),
        }
    }
}
