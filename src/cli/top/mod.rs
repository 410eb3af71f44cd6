//! `sumfs top`: what a mount is doing, once a second. On a terminal it stays; anywhere else it prints one screen and ends.

pub mod sample;
mod view;

use super::mountinfo::{mount_at, sumfs_mount};
use super::{Failure, Outcome};
use crate::sys::Mounted;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::style::Style;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};
use sample::{Between, Sample};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `sumfs top`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where the store is mounted.
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
    /// Seconds between looks.
    #[arg(long, short = 'n', value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Print one screen as plain text and end; this is what happens without a terminal.
    #[arg(long)]
    once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.1 to 3600".to_owned())
}

/// Shows what a mount does.
pub fn run(arguments: &Arguments) -> Outcome {
    let mount = sumfs_mount(&arguments.mountpoint)?;
    if arguments.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let before = Sample::take(&mount)?;
        std::thread::sleep(arguments.interval);
        let now = Sample::take(&mount)?;
        print!("{}", view::as_text(&view::screen(&Between { before: &before, now: &now })));
        return Ok(0);
    }
    let first = Sample::take(&mount)?;
    let failed = |error: io::Error| Failure::new(1, format!("the terminal: {error}; --once needs none"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let ended = watch(&mut terminal, &mount, first, arguments.interval);
    ratatui::restore();
    match ended.map_err(failed)? {
        None => Ok(0),
        Some(_) if mount_at(&mount.mountpoint).is_ok_and(|mount| mount.is_none()) => {
            println!("{} has been unmounted", mount.mountpoint.display());
            Ok(0)
        }
        Some(failure) => Err(failure),
    }
}

/// Until q is pressed (None), or the daemon gives no answer any more.
fn watch(terminal: &mut DefaultTerminal, mount: &Mounted, first: Sample, interval: Duration) -> io::Result<Option<Failure>> {
    let (mut before, mut now) = (first.clone(), first);
    loop {
        terminal.draw(|frame| draw(frame, &Between { before: &before, now: &now }))?;
        let next = Instant::now() + interval;
        while let left = next.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            if !event::poll(left)? {
                break;
            }
            match event::read()? {
                Event::Key(key) if ends(key.code, key.modifiers) => return Ok(None),
                // A new size: drawn with what is known.
                Event::Resize(..) => {
                    terminal.draw(|frame| draw(frame, &Between { before: &before, now: &now }))?;
                }
                _ => {}
            }
        }
        match Sample::take(mount) {
            Ok(sample) => before = std::mem::replace(&mut now, sample),
            Err(failure) => return Ok(Some(failure)),
        }
    }
}

fn ends(key: KeyCode, modifiers: KeyModifiers) -> bool {
    matches!(key, KeyCode::Char('q') | KeyCode::Esc) || key == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL)
}

fn draw(frame: &mut Frame<'_>, between: &Between<'_>) {
    let mut lines = view::screen(between);
    lines.push("".into());
    lines.push("q ends".into());
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        for span in lines.iter_mut().flat_map(|line| &mut line.spans) {
            span.style = Style { fg: None, ..span.style };
        }
        lines.iter_mut().for_each(|line| line.style = Style { fg: None, ..line.style });
    }
    frame.render_widget(Paragraph::new(lines), frame.area());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_end_it() {
        assert!(ends(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(ends(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!ends(KeyCode::Char('c'), KeyModifiers::NONE));
    }

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        ["0", "-1", "x", "1e9", "NaN"].iter().for_each(|text| assert!(parse_interval(text).is_err(), "{text}"));
    }
}
