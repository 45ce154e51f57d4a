//! Usage errors of `clap` in one line, as all other errors.

use std::io;

use clap::error::ErrorKind;

use super::Failure;

/// Prints help and the version, which end the program without an error. An error becomes a line
/// with the problem, the parser's tips and the command that shows help.
pub fn of_clap(error: &clap::Error) -> Failure {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => printed(error.print(), error),
        _ => Failure::usage(line(&error.render().to_string())),
    }
}

/// Help shown because a command lacks its subcommand is a usage error, but needs no further line.
fn printed(result: io::Result<()>, error: &clap::Error) -> Failure {
    match result {
        Err(cause) if !error.use_stderr() => Failure::writing("stdout", &cause),
        _ if error.use_stderr() => Failure::of_lines(64, []),
        _ => Failure::quiet(),
    }
}

/// One line of the parser's text, which has a message, tips and the usage of the command in
/// paragraphs.
fn line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let mut paragraphs = text.split("\n\n");
    let mut line = words(paragraphs.next().unwrap_or_default());
    // The parser gives no usage with a wrong value, whose message names the right ones.
    let mut help = String::new();
    for paragraph in paragraphs {
        if let Some(usage) = paragraph.strip_prefix("Usage: ") {
            help = format!("; see `{} --help`", command(usage));
        } else if let Some(tips) = paragraph.trim_start().strip_prefix("tip: ") {
            for tip in tips.split("\n  tip: ") {
                line += &format!("; {}", words(tip));
            }
        }
    }
    line + &help
}

/// The program and its subcommands, without their arguments.
fn command(usage: &str) -> String {
    let is_name = |word: &&str| word.bytes().all(|it| it.is_ascii_lowercase() || it == b'-');
    let names = usage.split_whitespace().take_while(is_name);
    let names = names.take_while(|word| !word.starts_with('-'));
    names.collect::<Vec<_>>().join(" ")
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_become_a_line() {
        let text = "error: unexpected argument '--confg' found\n\n  \
            tip: a similar argument exists: '--config'\n\n\
                    Usage: fenxi model check --json <DIR>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            line(text),
            "unexpected argument '--confg' found; a similar argument exists: '--config'; see \
            `fenxi model check --help`"
        );
        let text = "error: the following required arguments were not provided:\n  \
            <FILE>...\n\nUsage: fenxi replay <FILE>...\n";
        assert_eq!(
            line(text),
            "the following required arguments were not provided: <FILE>...; see `fenxi replay \
            --help`"
        );
    }
}
