//! The precompressor's life as a process: a pass over everything, then over what changes, and over
//! everything again every now and then, at the lowest priority there is.

use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::drafts::Drafts;
use super::pass::{Passes, Progress, Settings, Summary};
use super::start::{READY, STOP, Start, failed};
use super::store::Store;
use super::walk;
use super::watch::{Changes, Watches};
use crate::files::entry::Coding;
use crate::observe::names::Counter;
use crate::sys::sandbox::{Reads, Sandbox};
use crate::sys::wait::{self, For};
use crate::sys::{Error, pass, process};

/// How long nothing more must change before what changed is looked at: deploys write files one by one.
const QUIET: Duration = Duration::from_millis(500);

/// In some trees something always changes; it is looked at all the same.
const QUIET_MAX: Duration = Duration::from_secs(5);

/// How often roots are looked at, which may be symlinks that deploys flip.
const ROOTS_EVERY: Duration = Duration::from_secs(2);

/// How often everything is walked, where the kernel tells of changes and where it does not.
const RESCAN_WATCHED: Duration = Duration::from_secs(600);
const RESCAN_UNWATCHED: Duration = Duration::from_secs(60);

/// After a pass, at least so many times as long as it took until the next.
const REST: u32 = 20;

/// How soon a cache that could not be written to is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// So many skipped files are named in the log, by each process.
const NAMED_MAX: u32 = 20;

/// How often a pass says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Lives as the precompressor described by `start`. Called in a process of its own.
pub fn run(start: Start) -> ExitCode {
    process::be_idle();
    let Some(directory) = &start.config.cache.dir else { return ExitCode::SUCCESS };
    let sites = start.config.sites.iter().map(|site| (site.root.as_path(), site.symlinks));
    let sandbox = Sandbox::precompressor(Reads::of_roots(sites), directory.clone());
    match sandbox.enter(start.user.as_ref()) {
        Ok(entered) => {
            let missing = entered.failed.iter();
            missing.for_each(|reason| tracing::warn!("a layer of the sandbox is missing: {reason}"));
        }
        Err(error) => {
            tracing::error!("{error}");
            // Without the supervisor nobody is left to be told.
            let _ = pass::send(&start.channel, &failed(&error.to_string()), None);
            return ExitCode::FAILURE;
        }
    }
    let threads = process::cores().len();
    let passes = Passes::new(Settings::of(&start.config, threads), Store::new(directory));
    match Life::new(&start, passes).live() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What stays from one turn to the next.
struct Life<'a> {
    talk: Talk<'a>,
    passes: Passes,
    watches: Watches,
    changes: Changes,
    /// When the first and the last of `changes` were told.
    changed: Option<(Instant, Instant)>,
    /// Where the roots led when everything was last walked, by device and inode.
    places: Vec<Option<(u64, u64)>>,
    places_at: Instant,
    rescan_at: Instant,
}

impl<'a> Life<'a> {
    fn new(start: &'a Start, passes: Passes) -> Self {
        let now = Instant::now();
        Self {
            talk: Talk {
                start,
                drafts: passes.drafts().clone(),
                told: now,
                left: 0,
                named: 0,
                complaint: None,
                is_unwatched: false,
            },
            passes,
            watches: Watches::new(usize::MAX),
            changes: Changes::default(),
            changed: None,
            places: Vec::new(),
            places_at: now,
            rescan_at: now,
        }
    }

    fn live(mut self) -> Result<(), Error> {
        self.rescan();
        // Whoever waits for the first pass waits no longer, whatever became of it.
        let _ = pass::send(&self.talk.start.channel, READY, None);
        while !self.talk.is_told_to_stop() {
            let quiet_at = self.changed.map(|(first, last)| (last + QUIET).min(first + QUIET_MAX));
            let until = quiet_at.into_iter().chain([self.rescan_at, self.places_at]).min();
            let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
            let mut fds = vec![(self.talk.start.channel.as_fd(), For::Reading)];
            fds.extend(self.watches.fd().map(|fd| (fd, For::Reading)));
            wait::wait(&fds, limit)?;
            self.look();
            let now = Instant::now();
            if now >= self.rescan_at {
                self.rescan();
            } else if quiet_at.is_some_and(|at| now >= at) {
                self.catch_up();
            }
        }
        Ok(())
    }

    /// Takes in what changed since the last look.
    fn look(&mut self) {
        let now = Instant::now();
        let mut changes = Changes::default();
        self.watches.take(&mut changes);
        if now >= self.places_at {
            self.places_at = now + ROOTS_EVERY;
            changes.everything |= are_elsewhere(&self.passes, &self.places);
        }
        if changes != Changes::default() {
            self.changes.everything |= changes.everything;
            self.changes.directories.extend(changes.directories);
            let first = self.changed.map_or(now, |(first, _)| first);
            self.changed = Some((first, now));
        }
    }

    fn rescan(&mut self) {
        let began = Instant::now();
        // What is told from now on may have happened after the walk came by.
        (self.changes, self.changed) = (Changes::default(), None);
        self.places = walk::places(&self.passes.settings.roots);
        let (talk, places) = (&mut self.talk, &self.places);
        let roots = self.passes.settings.roots.clone();
        let mut look_at = began + ROOTS_EVERY;
        talk.counters().set(Counter::PrecompressRunning, 1);
        let summary = self.passes.all(false, Some(&mut self.watches), &mut |progress| {
            let now = Instant::now();
            if now >= look_at {
                look_at = now + ROOTS_EVERY;
                // A new release must not wait until the last one is compressed.
                if lead_elsewhere(&walk::places(&roots), places) {
                    return ControlFlow::Break(());
                }
            }
            talk.hear(&progress)
        });
        self.talk.conclude(&summary, began);
        self.talk.counters().set(Counter::PrecompressSources, summary.sources);
        self.talk.tell_of_watches(&self.watches);
        let every = if self.watches.refused().is_some() { RESCAN_UNWATCHED } else { RESCAN_WATCHED };
        let pause = match &summary {
            Summary { refused: Some(_), .. } => RETRY,
            Summary { is_broken_off: true, .. } => Duration::ZERO,
            _ => every.max(began.elapsed().saturating_mul(REST)),
        };
        self.rescan_at = Instant::now() + pause;
    }

    fn catch_up(&mut self) {
        let (changes, began) = (std::mem::take(&mut self.changes), Instant::now());
        self.changed = None;
        if changes.everything {
            self.rescan();
            return;
        }
        let talk = &mut self.talk;
        talk.counters().set(Counter::PrecompressRunning, 1);
        let hear = &mut |progress: Progress<'_>| talk.hear(&progress);
        let summary = self.passes.some(&changes.directories, &mut self.watches, hear);
        self.talk.conclude(&summary, began);
        if summary.refused.is_some() {
            self.rescan_at = self.rescan_at.min(Instant::now() + RETRY);
        }
    }
}

fn are_elsewhere(passes: &Passes, before: &[Option<(u64, u64)>]) -> bool {
    lead_elsewhere(&walk::places(&passes.settings.roots), before)
}

/// A root that leads nowhere, as between the two halves of a careless flip, is looked at again.
fn lead_elsewhere(now: &[Option<(u64, u64)>], before: &[Option<(u64, u64)>]) -> bool {
    now.iter().zip(before).any(|(now, before)| now.is_some() && now != before)
}

/// What is said to the operator, and heard of the supervisor.
struct Talk<'a> {
    start: &'a Start,
    drafts: Drafts,
    told: Instant,
    /// Sources that are still to be done.
    left: u64,
    /// How many skipped files were named.
    named: u32,
    /// What was said of the cache last, so that it is said once.
    complaint: Option<String>,
    is_unwatched: bool,
}

impl Talk<'_> {
    fn counters(&self) -> &crate::observe::names::Counters {
        &self.start.counters
    }

    /// Takes an order, of which there is one. The end of the stream says that nobody is left to give it.
    fn is_told_to_stop(&self) -> bool {
        let mut note = [0; 16];
        match pass::receive(&self.start.channel, &mut note) {
            Ok((length, _)) => length == 0 || note.get(..length) == Some(STOP),
            Err(errno) => errno != crate::sys::Errno::AGAIN,
        }
    }

    fn hear(&mut self, progress: &Progress<'_>) -> ControlFlow<()> {
        match progress {
            Progress::Planned { files, bytes } => {
                self.left = *files;
                self.told = Instant::now();
                if *files > 0 {
                    tracing::info!(
                        "compressing {files} files, {} for each encoding that is missing",
                        Size(*bytes)
                    );
                }
            }
            Progress::Done { made, size, .. } => {
                self.left = self.left.saturating_sub(1);
                for one in *made {
                    let [files, before, after] = counters_of(one.coding);
                    if let Some(bytes) = one.bytes {
                        self.counters().add(files, 1);
                        self.counters().add(before, *size);
                        self.counters().add(after, bytes);
                    }
                }
            }
            Progress::Skipped { path, reason } => {
                self.counters().add(Counter::PrecompressSkipped, 1);
                self.named += 1;
                match self.named {
                    ..=NAMED_MAX => tracing::warn!("{path} is not compressed: {reason}"),
                    more if more == NAMED_MAX + 1 => tracing::warn!("more files are skipped, and not named"),
                    _ => {}
                }
            }
            Progress::Waiting => {}
        }
        self.counters().set(Counter::PrecompressPending, self.left);
        if self.left > 0 && self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            tracing::info!("{} files are still to be compressed", self.left);
        }
        if self.is_told_to_stop() {
            // Other threads may be at something for minutes. What they have begun was not what ended us.
            let _nothing_more = self.drafts.give_up();
            std::process::exit(0);
        }
        ControlFlow::Continue(())
    }

    fn conclude(&mut self, summary: &Summary, began: Instant) {
        let counters = self.counters();
        counters.set(Counter::PrecompressRunning, 0);
        counters.set(Counter::PrecompressPending, 0);
        counters.add(Counter::PrecompressPasses, 1);
        counters.add(Counter::VariantsCollected, summary.collected.files);
        match (&summary.refused, &self.complaint) {
            (Some(new), old) if old.as_ref() != Some(new) => {
                tracing::warn!("{new}; files are served as they are until that is mended");
            }
            (None, Some(_)) => tracing::info!("the cache can be written to again"),
            _ => {}
        }
        self.complaint.clone_from(&summary.refused);
        if summary.planned > 0 && summary.refused.is_none() && !summary.is_broken_off {
            let made: u64 = summary.tallies.values().map(|tally| tally.files).sum();
            tracing::info!("made {made} variants of {} files in {:.1?}", summary.planned, began.elapsed());
        }
    }

    fn tell_of_watches(&mut self, watches: &Watches) {
        if let Some(errno) = watches.refused()
            && !self.is_unwatched
        {
            self.is_unwatched = true;
            let every = RESCAN_UNWATCHED.as_secs();
            tracing::warn!(
                "cannot watch all directories ({errno}; fs.inotify.max_user_watches may be too low): \
                 they are walked every {every} s"
            );
        }
    }
}

fn counters_of(coding: Coding) -> [Counter; 3] {
    match coding {
        Coding::Brotli => {
            [Counter::VariantsBrotli, Counter::VariantsBrotliBefore, Counter::VariantsBrotliAfter]
        }
        Coding::Zstd => [Counter::VariantsZstd, Counter::VariantsZstdBefore, Counter::VariantsZstdAfter],
        Coding::Gzip => [Counter::VariantsGzip, Counter::VariantsGzipBefore, Counter::VariantsGzipAfter],
    }
}

/// Bytes, for people.
pub struct Size(pub u64);

impl std::fmt::Display for Size {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let step =
            |(size, unit): (f64, usize)| (size >= 1024.0 && unit < 4).then_some((size / 1024.0, unit + 1));
        let last = std::iter::successors(Some((self.0 as f64, 0)), |at| step(*at)).last();
        match last {
            Some((size, unit @ 1..)) => out.pad(&format!("{size:.1} {}", UNITS[unit])),
            _ => out.pad(&format!("{} B", self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1 << 20, "1.0 MiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(Size(size).to_string(), text);
        }
    }

    #[test]
    fn a_root_that_is_gone_for_a_moment_is_no_flip() {
        let (here, there) = (Some((1, 1)), Some((1, 2)));
        assert!(!lead_elsewhere(&[here], &[here]));
        assert!(!lead_elsewhere(&[None], &[here]));
        assert!(lead_elsewhere(&[there], &[here]));
        assert!(lead_elsewhere(&[here], &[None]));
    }
}
