//! `httpd status`: asks the running server, and shows what it says.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::{control, now_in_seconds};
use crate::config::Config;
use crate::observe::status::{Rates, Status};
use crate::observe::table::Table;
use crate::sys::signals::Signals;
use crate::sys::terminal::Screen;
use crate::sys::wait::{For, wait};

/// How far apart the two looks are from which rates are told.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// How often a watcher looks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// How the status is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Show {
    /// For programs: each status is one line of JSON.
    pub json: bool,
    /// Again and again, until somebody interrupts.
    pub watch: bool,
}

/// Asks the running server how it is, and prints that.
pub fn status(config: &Config, show: Show) -> ExitCode {
    let Some(path) = &config.server.control else {
        return fail("the configuration names no control socket: set `control` in [server]");
    };
    let shown = if show.watch { watch(path, show.json) } else { once(path, show.json) };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => fail(&reason),
    }
}

fn fail(reason: &str) -> ExitCode {
    // Where standard error is closed, the exit code says enough.
    let _ = writeln!(std::io::stderr(), "{reason}");
    ExitCode::FAILURE
}

fn once(path: &Path, json: bool) -> Result<(), String> {
    let look = Look::take(path)?;
    if json {
        return print(&look.json(None)).map(drop);
    }
    std::thread::sleep(BETWEEN_LOOKS);
    // It may have ended in between: then the first look is all there is to show.
    let text = match Look::take(path) {
        Ok(again) => again.table(Some(&look)),
        Err(_) => look.table(None),
    };
    print(&text).map(drop)
}

/// Looks every second: on a terminal drawn in place, elsewhere one after another.
fn watch(path: &Path, json: bool) -> Result<(), String> {
    let mut signals = Signals::block().map_err(|error| error.to_string())?;
    let mut before: Option<Look> = Some(Look::take(path)?);
    let is_drawn = std::io::stdout().is_terminal() && !json;
    let screen = is_drawn.then(Screen::show).transpose().map_err(|error| error.to_string())?;
    loop {
        wait(&[(signals.as_fd(), For::Reading)], Some(WATCH_EVERY)).map_err(|error| error.to_string())?;
        if signals.take().is_some() {
            return Ok(());
        }
        let look = Look::take(path);
        let goes_on = match (&look, &screen) {
            (Ok(look), Some(screen)) => screen.draw(&look.table(before.as_ref())).is_ok(),
            (Ok(look), None) if json => print(&look.json(before.as_ref()))?,
            (Ok(look), None) => print(&format!("{}\n", look.table(before.as_ref())))?,
            // It may be started again.
            (Err(reason), Some(screen)) => screen.draw(reason).is_ok(),
            (Err(reason), None) => return Err(reason.clone()),
        };
        if !goes_on {
            return Ok(());
        }
        before = look.ok();
    }
}

/// To standard output; whether somebody still reads there.
fn print(text: &str) -> Result<bool, String> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("cannot write the status: {error}")),
    }
}

/// A status, and when it was asked for.
struct Look {
    status: Status,
    at: Instant,
}

impl Look {
    fn take(path: &Path) -> Result<Self, String> {
        let at = Instant::now();
        let text = control::ask(path).map_err(|error| explain(path, &error))?;
        match serde_json::from_str::<Status>(&text) {
            Ok(status) if status.pid > 0 => Ok(Self { status, at }),
            Ok(_) => Err(format!("{} answers, but not as httpd does: {}", path.display(), text.trim_end())),
            Err(error) => Err(format!("{} answered what is no status: {error}", path.display())),
        }
    }

    fn table(&self, before: Option<&Self>) -> String {
        let before = self.successor_of(before);
        let mut text = Table { status: &self.status, before, now: now_in_seconds() }.to_string();
        let ours = env!("CARGO_PKG_VERSION");
        if self.status.version != ours {
            text.push_str(&format!("\nthis command is of version {ours} and may not know all of it\n"));
        }
        text
    }

    fn json(&self, before: Option<&Self>) -> String {
        let rates = self.successor_of(before).map(|(before, ago)| Rates::between(before, &self.status, ago));
        let status = Status { rates, ..self.status.clone() };
        serde_json::to_string(&status).map(|text| text + "\n").unwrap_or_default()
    }

    /// An earlier look at the same process, and how long before.
    fn successor_of<'a>(&self, before: Option<&'a Self>) -> Option<(&'a Status, Duration)> {
        let before = before.filter(|before| before.status.pid == self.status.pid)?;
        Some((&before.status, self.at.duration_since(before.at)))
    }
}

/// Why nobody answered, and what to do about it.
fn explain(path: &Path, error: &std::io::Error) -> String {
    let shown = path.display();
    match error.kind() {
        ErrorKind::NotFound => format!(
            "no server is running: there is no {shown}\n    = if it was started with another configuration, \
             name that with -c"
        ),
        ErrorKind::ConnectionRefused => {
            format!("no server is running: the one that made {shown} did not end in good order")
        }
        ErrorKind::PermissionDenied => {
            let owner = std::fs::metadata(path).ok().map(|facts| facts.uid());
            let whose = match owner {
                Some(0) => "to root: try sudo".to_owned(),
                Some(user) => format!("to the user with number {user}"),
                None => "to another user".to_owned(),
            };
            format!("the server may not be asked by this user: {shown} belongs {whose}")
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("the server does not answer at {shown}: it may be busy replacing its program; try again")
        }
        _ => format!("nobody answers at {shown}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_be_asked_is_explained() {
        let path = Path::new("/nonexistent/control.sock");
        for (kind, expected) in [
            (ErrorKind::NotFound, "no server is running: there is no /nonexistent/control.sock"),
            (ErrorKind::ConnectionRefused, "did not end in good order"),
            (ErrorKind::PermissionDenied, "may not be asked by this user"),
            (ErrorKind::WouldBlock, "try again"),
            (ErrorKind::BrokenPipe, "nobody answers at /nonexistent/control.sock: broken pipe"),
        ] {
            let said = explain(path, &kind.into());
            assert!(said.contains(expected), "{said}");
        }
    }
}
