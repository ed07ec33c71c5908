//! `httpd compress`: one pass, now, as fast as the machine can, with somebody watching.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::drafts::Drafts;
use super::pass::{Passes, Progress, Saving, Settings, Summary, Tally};
use super::run::Size;
use super::start;
use super::store::Store;
use crate::config::Config;
use crate::files::entry::Coding;
use crate::sys::signals::Signals;
use crate::sys::user::User;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Jobs at a time; `None`: one per core.
    pub jobs: Option<usize>,
    /// Only to say what is missing.
    pub dry_run: bool,
    /// To make everything anew.
    pub force: bool,
    /// To answer a program.
    pub json: bool,
}

/// How often a line is written where no bar can be drawn.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Brings the cache of a configuration up to date.
pub fn run(config: &Config, options: Options) -> ExitCode {
    match pass(config, options) {
        Ok((summary, took)) => conclude(config, &summary, options, took),
        Err(reason) => {
            complain(&reason);
            ExitCode::FAILURE
        }
    }
}

fn pass(config: &Config, options: Options) -> Result<(Summary, Duration), String> {
    let Some(directory) = &config.cache.dir else {
        return Err(
            "there is no cache directory: set `cache.dir` in the configuration, or name one with --cache"
                .into(),
        );
    };
    // As the server does, so that it can renew and remove later what is made now.
    let user = match &config.server.user {
        Some(name) => Some(
            User::find(name)
                .map_err(|error| error.to_string())?
                .ok_or_else(|| format!("there is no user `{name}`: set `server.user`"))?,
        ),
        None => None,
    };
    if !options.dry_run {
        start::prepare(directory, user.as_ref()).map_err(|error| error.to_string())?;
    }
    user.as_ref().map_or(Ok(()), User::become_it).map_err(|error| error.to_string())?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut settings = Settings::of(config, options.jobs.unwrap_or(cores));
    settings.force = options.force;
    settings.largest_first = true;
    let began = Instant::now();
    let mut shown = Shown::new(options);
    let mut passes = Passes::new(settings, Store::new(directory));
    let mut interruption = Interruption { signals: None, drafts: passes.drafts().clone() };
    let summary = passes.all(options.dry_run, None, &mut |progress| {
        interruption.hear(&progress);
        shown.hear(&progress)
    });
    shown.bar.finish_and_clear();
    Ok((summary, began.elapsed()))
}

/// Ends the process in good order when somebody interrupts it: a draft that is left behind counts against
/// its source.
struct Interruption {
    signals: Option<Signals>,
    drafts: Drafts,
}

impl Interruption {
    fn hear(&mut self, progress: &Progress<'_>) {
        // Until something is written, a signal may end it as it ends any program.
        if let Progress::Planned { files: 1.., .. } = progress {
            self.signals = Signals::block().ok();
        }
        if self.signals.as_mut().and_then(Signals::take).is_some() {
            let _nothing_more = self.drafts.give_up();
            complain("interrupted: what is made stays, the rest is left for the next time");
            std::process::exit(1);
        }
    }
}

/// How far it is, on standard error.
struct Shown {
    bar: ProgressBar,
    is_drawn: bool,
    is_silent: bool,
    files: u64,
    files_done: u64,
    told: Instant,
}

impl Shown {
    fn new(options: Options) -> Self {
        let is_drawn = std::io::stderr().is_terminal() && !options.json && !options.dry_run;
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let is_silent = options.json || options.dry_run;
        Self { bar, is_drawn, is_silent, files: 0, files_done: 0, told: Instant::now() }
    }

    fn hear(&mut self, progress: &Progress<'_>) -> ControlFlow<()> {
        match progress {
            Progress::Planned { files, bytes } => {
                self.files = *files;
                self.bar.set_length(*bytes);
                self.bar.reset_eta();
                if self.is_drawn && *files > 0 {
                    const LOOK: &str = "{bar:30} {msg}  {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left";
                    self.bar.set_draw_target(ProgressDrawTarget::stderr());
                    // A template that does not parse would show by its absence.
                    self.bar.set_style(
                        ProgressStyle::with_template(LOOK).unwrap_or(ProgressStyle::default_bar()),
                    );
                }
            }
            Progress::Done { bytes, .. } => {
                self.files_done += 1;
                self.bar.inc(*bytes);
                self.bar.set_message(format!("{}/{} files", self.files_done, self.files));
            }
            Progress::Skipped { path, reason } => {
                self.bar.suspend(|| complain(&format!("{path} is not compressed: {reason}")));
            }
            Progress::Waiting => self.bar.tick(),
        }
        if !self.is_drawn && !self.is_silent && self.told.elapsed() >= LINE_EVERY {
            self.told = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
            let rate = Size(self.bar.per_sec() as u64);
            complain(&format!(
                "{}/{} files, {} of {}, {rate}/s, {} s left",
                self.files_done,
                self.files,
                Size(done),
                Size(all),
                self.bar.eta().as_secs()
            ));
        }
        ControlFlow::Continue(())
    }
}

/// For programs.
#[derive(serde::Serialize)]
struct Answer<'a> {
    files: u64,
    bytes: u64,
    missing: u64,
    seconds: f64,
    encodings: Vec<Encoding>,
    largest_savings: &'a [Saving],
    skipped: u64,
    collected_files: u64,
    collected_bytes: u64,
    error: Option<&'a str>,
}

#[derive(serde::Serialize)]
struct Encoding {
    name: &'static str,
    #[serde(flatten)]
    tally: Tally,
}

fn conclude(config: &Config, summary: &Summary, options: Options, took: Duration) -> ExitCode {
    let tally = |coding: Coding| summary.tallies.get(&coding).map(|tally| (coding, *tally));
    let tallies: Vec<(Coding, Tally)> = Coding::ALL.into_iter().filter_map(tally).collect();
    let text = if options.json {
        let answer = Answer {
            files: summary.sources,
            bytes: summary.source_bytes,
            missing: summary.planned,
            seconds: took.as_secs_f64(),
            encodings: tallies
                .iter()
                .map(|(coding, tally)| Encoding { name: coding.name(), tally: *tally })
                .collect(),
            largest_savings: &summary.savings,
            skipped: summary.skipped,
            collected_files: summary.collected.files,
            collected_bytes: summary.collected.bytes,
            error: summary.refused.as_deref(),
        };
        // Nothing in it can fail to be written as text.
        serde_json::to_string_pretty(&answer).unwrap_or_default() + "\n"
    } else {
        told(summary, &tallies, options, took)
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    if let (Some(reason), false) = (&summary.refused, options.json) {
        complain(reason);
        if let Some(user) = &config.server.user {
            complain(&format!("    = it is written to as the user `{user}`, as the server would"));
        }
    }
    if summary.refused.is_some() || written.is_err() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// For people.
fn told(summary: &Summary, tallies: &[(Coding, Tally)], options: Options, took: Duration) -> String {
    let mut text = String::new();
    let (files, bytes) = (summary.sources, Size(summary.source_bytes));
    // Writing to a string cannot fail.
    let _ = match (summary.planned, options.dry_run) {
        (0, _) if summary.refused.is_some() => {
            writeln!(text, "{files} files, {bytes}: not all was looked at")
        }
        (0, _) => writeln!(text, "{files} files, {bytes}: all variants are there ({took:.2?})"),
        (missing, true) => writeln!(text, "{files} files, {bytes}: {missing} of them lack variants"),
        (missing, false) => {
            writeln!(text, "{files} files, {bytes}: {missing} of them lacked variants ({took:.1?})")
        }
    };
    if !tallies.is_empty() {
        let _ = writeln!(
            text,
            "\n{:8} {:>8} {:>12} {:>12} {:>8} {:>12} {:>8} {:>8}",
            "encoding", "files", "before", "after", "ratio", "time", "reused", "larger"
        );
    }
    for (coding, tally) in tallies {
        let ratio = tally.after as f64 * 100.0 / tally.before.max(1) as f64;
        let _ = writeln!(
            text,
            "{:8} {:>8} {:>12} {:>12} {:>6.1} % {:>10.1} s {:>8} {:>8}",
            coding.name(),
            tally.files,
            Size(tally.before),
            Size(tally.after),
            ratio,
            tally.microseconds as f64 / 1e6,
            tally.reused,
            tally.larger
        );
    }
    if !summary.savings.is_empty() {
        text.push_str("\nlargest savings\n");
    }
    for saving in &summary.savings {
        let _ = writeln!(text, "{:>12} -> {:>10}  {}", Size(saving.before), Size(saving.after), saving.path);
    }
    if summary.skipped > 0 {
        let _ = writeln!(text, "\n{} files or directories were skipped", summary.skipped);
    }
    if summary.collected.files > 0 {
        let (files, bytes) = (summary.collected.files, Size(summary.collected.bytes));
        let _ = writeln!(text, "\n{files} variants that nothing needs any more were removed, {bytes}");
    }
    text
}

/// To stderr; where that is closed, nobody reads.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
