//! `fenxi top`: the live view of a running instance.

use std::time::Duration;

use console::top::{Options, Screen, moment, run};

use super::ctl::{socket, unanswered};
use crate::cli::TopArgs;
use crate::exit::{Failure, print};
use crate::protocol::{Client, Request};

/// How long a reply may take: a picture of a large table takes a few seconds.
const REPLY_WITHIN: Duration = Duration::from_secs(10);

/// Size of the screen that `--once` prints, where the environment does not say it.
const COLUMNS: usize = 80;
const LINES: usize = 24;

/// Shows the live view until the user quits; with `--once`, prints one screen.
///
/// # Errors
/// 69: nothing listens, or there is no terminal. 77: the socket is somebody else's.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    let client = Client::new(&socket(args.socket.as_deref())?, REPLY_WITHIN);
    if args.once {
        return once(&client);
    }
    let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let options = Options { interval: Duration::from_secs(u64::from(args.interval)), has_colour };
    run(client, options).map_err(|error| Failure::unavailable(format!("fenxi top: {error}")))
}

fn once(client: &Client) -> Result<(), Failure> {
    // For its exit code, which tells a missing permission from a missing program.
    client.ask(&Request::Threads {}).map_err(unanswered)?;
    let top = moment(client, 200).map_err(Failure::unavailable)?;
    let size = |name: &str, default: usize| {
        let value = std::env::var(name).ok().and_then(|value| value.parse().ok());
        value.unwrap_or(default).clamp(1, 1000)
    };
    let screen = Screen { top: Some(top), ..Screen::default() };
    print(&screen.text(size("COLUMNS", COLUMNS), size("LINES", LINES)))
}
