//! `fenxi manual`: the man pages and shell completions that packages install. They are made from
//! the declarations of the command line and of the configuration keys, so there is no second list.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use config::checked::SECTIONS;
use config::{Change, Key, Shape};

use crate::cli::{Cli, ManualArgs};
use crate::exit::Failure;
use crate::sinks;
use crate::version::NUMBER;

/// System administration: commands of an operator.
const SECTION: &str = "8";

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Exit codes, from sysexits(3).
const EXIT_CODES: [(&str, &str); 9] = [
    ("0", "ended as requested"),
    ("64", "wrong usage"),
    ("65", "a damaged capture, bundle or recording"),
    ("66", "a file that does not exist or cannot be read"),
    ("69", "no such interface or device, or no ONNX Runtime"),
    ("70", "a bug in fenxi"),
    ("73, 74", "a file cannot be created; reading or writing failed"),
    ("77", "a missing permission"),
    ("78", "a wrong configuration"),
];

/// Writes `DIR/man/*.8`, `DIR/man/fenxi.toml.5` and `DIR/completions/*`.
pub fn manual(args: &ManualArgs) -> Result<(), Failure> {
    let (man, completions) = (args.dir.join("man"), args.dir.join("completions"));
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).map_err(|error| Failure::creating(dir, &error))?;
    }
    let mut command = Cli::command();
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut command, "fenxi", &completions)
            .map_err(|error| Failure::creating(&completions, &error))?;
    }
    // A new command: generating the completions has built the other one, which added its `help`
    // subcommands.
    let mut command = without_help(Cli::command());
    command.build();
    pages(&command, &man)?;
    write(&man, "fenxi.toml.5", keys)
}

/// `fenxi help` has no page of its own.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

fn pages(command: &Command, dir: &Path) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or("fenxi").to_owned();
    write(dir, &format!("{name}.{SECTION}"), |out| page(command, out))?;
    let subcommands = command.get_subcommands();
    let mut subcommands = subcommands.filter(|it| !it.is_hide_set());
    subcommands.try_for_each(|subcommand| pages(subcommand, dir))
}

fn write(
    dir: &Path,
    name: &str,
    content: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
) -> Result<(), Failure> {
    let path = dir.join(name);
    let mut bytes = Vec::new();
    let written = content(&mut bytes).and_then(|()| fs::write(&path, bytes));
    written.map_err(|error| Failure::creating(&path, &error))
}

fn page(command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    let is_top = command.get_name() == "fenxi";
    let man = Man::new(command.clone())
        .section(SECTION)
        .manual("fenxi")
        .source(format!("fenxi {NUMBER}"));
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    if is_top {
        files(out)?;
    } else {
        see_also(out, &[("fenxi", "8"), ("fenxi.toml", "5")])?;
    }
    Ok(())
}

fn files(out: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_CODES {
        roff.control("TP", []).text([bold(code)]).text([roman(meaning)]);
    }
    roff.control("SH", ["FILES"]);
    for (path, what) in [
        ("/etc/fenxi/fenxi.toml", "the configuration of the service, fenxi.toml(5)"),
        ("/etc/fenxi/conf.d/*.toml", "files that override it, in the order of their names"),
        ("/usr/share/fenxi/models", "the shipped models"),
        ("/usr/lib/fenxi/libonnxruntime.so", "ONNX Runtime, which runs them"),
        ("/run/fenxi/ctl.sock", "the socket of fenxi ctl"),
        (
            "/var/lib/fenxi",
            "records and the memory of servers, where the configuration asks for them",
        ),
        ("/usr/share/doc/fenxi", "the documents, and examples for nftables and tc"),
    ] {
        roff.control("TP", []).text([italic(path)]).text([roman(what)]);
    }
    roff.to_writer(out)?;
    see_also(out, &[("fenxi.toml", "5"), ("conntrack", "8"), ("nft", "8"), ("tc", "8")])
}

fn see_also(out: &mut Vec<u8>, pages: &[(&str, &str)]) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let mut line: Vec<Inline> = Vec::new();
    for (at, (name, section)) in pages.iter().enumerate() {
        let end = if at + 1 < pages.len() { "), " } else { ")" };
        line.extend([bold(*name), roman(format!("({section}{end}"))]);
    }
    roff.text(line);
    roff.to_writer(out)
}

/// The keys of devices and of all sections without names of the user's choice.
fn all_keys() -> impl Iterator<Item = &'static Key> {
    let all = SECTIONS.iter().copied().chain(sinks::sections());
    let shown = all.filter(|it| it.shape == Shape::One || it.name == "device");
    shown.flat_map(|section| section.keys)
}

fn keys(out: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    let source = format!("fenxi {NUMBER}");
    roff.control("TH", ["fenxi.toml", "5", "", &source, "fenxi"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("fenxi.toml - configuration of fenxi")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "A TOML file. A key that is left out has its default. Later sources win: the file, the \
         files of the folder conf.d \
         beside it, environment variables, options of the command line. A reload changes the keys \
         that are marked live; \
         the others wait for a restart.",
    )]);
    let mut section = "";
    for key in all_keys() {
        if key.section() != section {
            section = key.section();
            let title = match section == "device" {
                true => "[device.NAME]".to_owned(),
                false => format!("[{section}]"),
            };
            roff.control("SH", [title.as_str()]);
        }
        entry(&mut roff, key);
    }
    roff.to_writer(out)?;
    see_also(out, &[("fenxi", "8"), ("fenxi-config-show", "8")])
}

fn entry(roff: &mut Roff, key: &Key) {
    let live = match key.change {
        Change::Live => ", live",
        Change::Restart => "",
    };
    let unit = match key.unit {
        "" => String::new(),
        unit => format!(" ({unit})"),
    };
    roff.control("TP", []);
    roff.text([bold(key.path), roman(unit)]);
    roff.text([roman(format!("{}.", key.why.trim_end_matches('.')))]);
    roff.control("br", []);
    roff.text([roman(format!("Default: {}{live}", key.default))]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_key_has_its_place() {
        let dir = tempfile::tempdir().unwrap();
        manual(&ManualArgs { dir: dir.path().to_owned() }).unwrap();
        let names = |folder: &str| -> Vec<String> {
            let entries = fs::read_dir(dir.path().join(folder)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect()
        };
        let pages = names("man");
        for page in ["fenxi.8", "fenxi-run.8", "fenxi-ctl-flows.8", "fenxi.toml.5"] {
            assert!(pages.contains(&page.to_owned()), "{page}: {pages:?}");
        }
        for hidden in ["manual", "try", "help"] {
            assert!(!pages.iter().any(|page| page.contains(hidden)), "{pages:?}");
        }
        assert_eq!(names("completions").len(), SHELLS.len());
        let text = fs::read_to_string(dir.path().join("man/fenxi.toml.5")).unwrap();
        for key in all_keys() {
            assert!(text.contains(key.path), "{}", key.path);
        }
    }
}
