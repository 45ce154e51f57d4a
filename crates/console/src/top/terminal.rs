//! The terminal: shows a screen, reads keys, and asks again.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::protocol::{Body, Client, Request, Top};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::Style;
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::screen::{Pane, Screen};

/// How long a key may wait for its effect.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Flows and hosts that are asked for.
const ROWS: usize = 200;

/// How it is shown.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Time between two moments.
    pub interval: Duration,
    /// Whether colours are used.
    pub has_colour: bool,
}

/// The moment now.
///
/// # Errors
/// Why there is none, in one line.
pub fn moment(client: &Client, rows: usize) -> Result<Top, String> {
    let (_, reply) = client.ask(&Request::Top { rows }).map_err(|error| error.to_string())?;
    match (reply.body, reply.error) {
        (Some(Body::Top(top)), _) => Ok(*top),
        (_, Some(error)) => Err(error),
        _ => Err("the running fenxi does not know this request; is it older?".to_owned()),
    }
}

/// Shows the run until the user quits, or a signal ends it. The terminal is as before then, also
/// after a panic.
///
/// # Errors
/// There is no terminal, or it is gone.
pub fn run(client: Client, options: Options) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return Err(io::Error::other(
            "standard output is no terminal; --once prints one screen as text",
        ));
    }
    let is_ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_ended.clone())?;
    }
    let (next, asked) = channel();
    let (answers, answered) = channel();
    let interval = options.interval;
    thread::Builder::new()
        .name("top".to_owned())
        .spawn(move || ask(&client, interval, &asked, &answers))?;
    thread::Builder::new().name("hang-up".to_owned()).spawn(end_with_the_terminal)?;
    // It also makes a panic restore the terminal first.
    let mut terminal = ratatui::try_init()?;
    let mut screen = Screen::default();
    let shown = loop {
        let drawn = terminal.draw(|frame| {
            let area = frame.area();
            let lines = screen.lines(usize::from(area.width), usize::from(area.height));
            let lines = match options.has_colour {
                true => lines,
                false => lines.into_iter().map(without_colour).collect(),
            };
            frame.render_widget(Paragraph::new(Text::from(lines)), area);
        });
        if let Err(error) = drawn {
            break Err(error);
        }
        if is_ended.load(Ordering::Relaxed) {
            break Ok(());
        }
        match event::poll(LOOK_EVERY) {
            Ok(false) => {}
            Ok(true) => match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if !press(&mut screen, key) {
                        break Ok(());
                    }
                }
                Ok(_) => {}
                Err(error) => break Err(error),
            },
            Err(error) => break Err(error),
        }
        for answer in answered.try_iter() {
            take(&mut screen, answer);
        }
    };
    drop(next);
    ratatui::try_restore()?;
    shown
}

/// Ends the program once its terminal is gone, as when a connection to another machine breaks.
/// Crossterm 0.29 does not see that: it reads nothing from the terminal again and again, and the
/// flag of SIGHUP is not looked at.
fn end_with_the_terminal() {
    let stdout = io::stdout();
    // A hang-up is reported whether or not it is asked for.
    let mut terminal = [PollFd::new(&stdout, PollFlags::empty())];
    loop {
        match poll(&mut terminal, None) {
            Err(Errno::INTR) => {}
            Err(_) => return,
            Ok(_) => std::process::exit(0),
        }
    }
}

/// Asks for a moment at each interval, until the other side is gone.
fn ask(
    client: &Client,
    interval: Duration,
    asked: &Receiver<()>,
    answers: &Sender<Result<Top, String>>,
) {
    while answers.send(moment(client, ROWS)).is_ok() {
        if asked.recv_timeout(interval) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

fn take(screen: &mut Screen, answer: Result<Top, String>) {
    match answer {
        Ok(_) if screen.is_paused => screen.problem = None,
        Ok(top) => (screen.top, screen.problem) = (Some(top), None),
        Err(problem) => screen.problem = Some(problem),
    }
}

/// What a key does; false: the user quits.
fn press(screen: &mut Screen, key: KeyEvent) -> bool {
    let page = 10;
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('p' | ' ') => screen.is_paused = !screen.is_paused,
        KeyCode::Char('s') => (screen.sort, screen.scrolled) = (screen.sort.next(), 0),
        KeyCode::Up | KeyCode::Char('k') => screen.scrolled = screen.scrolled.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => screen.scrolled = (screen.scrolled + 1).min(ROWS),
        KeyCode::PageUp => screen.scrolled = screen.scrolled.saturating_sub(page),
        KeyCode::PageDown => screen.scrolled = (screen.scrolled + page).min(ROWS),
        KeyCode::Home => screen.scrolled = 0,
        KeyCode::Char(digit @ '1'..='6') => {
            screen.pane = match digit {
                '1' => Pane::Overview,
                '2' => Pane::Labels,
                '3' => Pane::Hosts,
                '4' => Pane::Flows,
                '5' => Pane::Health,
                _ => Pane::Services,
            };
            screen.scrolled = 0;
        }
        _ => {}
    }
    true
}

/// Bold, dim and reversed stay; they are no colours.
fn without_colour(line: Line<'static>) -> Line<'static> {
    let spans = line.spans.into_iter().map(|mut span| {
        span.style = Style { fg: None, bg: None, ..span.style };
        span
    });
    Line::from(spans.collect::<Vec<_>>())
}
