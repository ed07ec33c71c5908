//! Diagnostics: `tracing` events as single lines on standard error, with the priority the journal
//! reads when it is the journal that listens, and with a time otherwise.
//!
//! Nothing here starts a thread or holds a lock between calls: the supervisor forks.

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{OnceLock, RwLock};
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::reload;

use super::calendar::Moment;
use crate::sys::stderr;

static FILTER: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Who this process is; nobody in particular in the supervisor.
static SPEAKER: RwLock<Option<String>> = RwLock::new(None);

/// Writes events of this level and above from now on. The first call installs the writer.
pub fn start(least_severe: Level) {
    let filter = LevelFilter::from_level(least_severe);
    if let Some(handle) = FILTER.get() {
        // Fails only when the subscriber is gone, and it never goes.
        let _ = handle.reload(filter);
        return;
    }
    let (filter, handle) = reload::Layer::new(filter);
    // Now, since children inherit descriptor 2 as it is when they are forked.
    KIND.get_or_init(stderr::prepare);
    // A standard error that is gone must not end the program: what cannot be said is lost.
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Lines { style: Style::of_stderr() })
        .with_writer(|| Stderr)
        .log_internal_errors(false);
    // Refused where another writer was installed before, as tests do.
    if tracing::subscriber::set_global_default(Registry::default().with(filter).with(lines)).is_ok() {
        let _ = FILTER.set(handle);
    }
}

/// Has the lines of this process, a fresh child, say who speaks.
pub fn speak_as(name: &str) {
    if let Ok(mut speaker) = SPEAKER.write() {
        *speaker = Some(name.to_owned());
    }
}

/// The longest line, with all that stands before its text. What a pipe takes as a whole leaves room for
/// [`lost`] before it.
const LINE_BYTES_MAX: usize = stderr::WHOLE_BYTES_MAX - 96;

/// Lines that found no room since the last one that did.
static LOST: AtomicU32 = AtomicU32::new(0);

/// What standard error leads to, found out once.
static KIND: OnceLock<stderr::Kind> = OnceLock::new();

/// Standard error, but never waited for: a reader that stopped reading must not stop a server.
struct Stderr;

impl std::io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let kind = *KIND.get_or_init(stderr::prepare);
        let before = LOST.swap(0, Relaxed);
        let written = match before {
            0 => stderr::write(kind, line),
            lines => stderr::write(kind, &[lost(lines).as_bytes(), line].concat()),
        };
        if written.is_err() {
            LOST.fetch_add(before.saturating_add(1), Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn lost(lines: u32) -> String {
    format!("({lines} lines were lost: nobody read them) ")
}

/// How a line begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Style {
    /// With a priority; the journal knows the time.
    Journal,
    /// With time and level.
    Plain,
    /// The same, with the level in colour.
    Colour,
}

impl Style {
    fn of_stderr() -> Self {
        if is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref()) {
            Self::Journal
        } else if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
            Self::Colour
        } else {
            Self::Plain
        }
    }
}

/// Whether standard error leads to the journal: the variable names the device and inode it was set for,
/// and is inherited also by programs whose standard error leads elsewhere.
fn is_journal(variable: Option<&str>) -> bool {
    let Some((device, inode)) = variable.and_then(|text| text.split_once(':')) else { return false };
    let Ok(facts) = std::fs::metadata("/proc/self/fd/2") else { return false };
    device.parse() == Ok(facts.dev()) && inode.parse() == Ok(facts.ino())
}

/// The end of a line that was too long.
const CUT: &str = " [cut]";

struct Lines {
    style: Style,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = Text::default();
        event.record(&mut text);
        let speaker = SPEAKER.read();
        let speaker = speaker.as_ref().ok().and_then(|speaker| speaker.as_deref());
        let head =
            Head { style: self.style, level: *event.metadata().level(), speaker, time: SystemTime::now() };
        let mut line = format!("{head}{}", OneLine(&text.finish()));
        if line.len() >= LINE_BYTES_MAX {
            let end = (0..=LINE_BYTES_MAX - CUT.len()).rev().find(|&at| line.is_char_boundary(at));
            line.truncate(end.unwrap_or_default());
            line.push_str(CUT);
        }
        line.push('\n');
        // In one piece, since each is a line of its own to the writer.
        writer.write_str(&line)
    }
}

struct Head<'a> {
    style: Style,
    level: Level,
    speaker: Option<&'a str>,
    time: SystemTime,
}

impl fmt::Display for Head<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Priorities of syslog(3); colours of the terminals' basic eight.
        let (priority, name, colour) = match self.level {
            Level::ERROR => (3, "error", 31),
            Level::WARN => (4, "warn", 33),
            Level::INFO => (6, "info", 32),
            Level::DEBUG => (7, "debug", 34),
            Level::TRACE => (7, "trace", 35),
        };
        match self.style {
            Style::Journal => write!(formatter, "<{priority}>")?,
            Style::Plain => write!(formatter, "{} {name} ", Moment::from(self.time))?,
            Style::Colour => {
                write!(formatter, "{} \x1b[{colour}m{name}\x1b[0m ", Moment::from(self.time))?;
            }
        }
        match self.speaker {
            Some(name) => write!(formatter, "{name}: "),
            None => Ok(()),
        }
    }
}

/// The message of an event, then its other fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn finish(self) -> String {
        self.message + &self.fields
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Text with all that could break or disguise a line escaped.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(char::is_control) {
            match part.char_indices().next_back() {
                Some((at, control)) if control.is_control() => {
                    write!(formatter, "{}{}", &part[..at], control.escape_default())?;
                }
                _ => formatter.write_str(part)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is written of the events that happen in `speak`.
    fn written(speak: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Lines { style: Style::Journal })
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(Registry::default().with(layer), speak);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_event_is_one_line() {
        let text = written(|| tracing::warn!(pid = 7, reason = "a\nb", "worker {} died\x1b[2J", 3));
        assert_eq!(text, "<4>worker 3 died\\u{1b}[2J pid=7 reason=\"a\\nb\"\n");
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let text = written(|| tracing::warn!("x{}", "é".repeat(LINE_BYTES_MAX)));
        assert!((LINE_BYTES_MAX - 2..=LINE_BYTES_MAX + 1).contains(&text.len()), "{}", text.len());
        assert!(text.starts_with("<4>x") && text.ends_with("é [cut]\n"));
        assert!(text.len() + lost(u32::MAX).len() <= stderr::WHOLE_BYTES_MAX);
    }

    #[test]
    fn lines_begin_as_their_reader_likes() {
        let head =
            |style, level, speaker| Head { style, level, speaker, time: SystemTime::UNIX_EPOCH }.to_string();
        assert_eq!(head(Style::Journal, Level::ERROR, Some("worker 2")), "<3>worker 2: ");
        assert_eq!(head(Style::Plain, Level::INFO, None), "1970-01-01T00:00:00.000Z info ");
        assert!(head(Style::Colour, Level::WARN, None).contains("\x1b[33mwarn\x1b[0m"));
    }

    #[test]
    fn the_journal_is_recognised_by_the_file_itself() {
        let facts = std::fs::metadata("/proc/self/fd/2").unwrap();
        assert!(is_journal(Some(&format!("{}:{}", facts.dev(), facts.ino()))));
        assert!(!is_journal(Some(&format!("{}:{}", facts.dev(), facts.ino() + 1))));
        assert!(!is_journal(Some("rubbish")));
        assert!(!is_journal(None));
    }
}
