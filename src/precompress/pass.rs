//! One pass: what is served is walked, what is missing is made, what nothing needs any more is taken away.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::drafts::Drafts;
use super::job::{Contents, Failure, Job, Made, Workshop};
use super::pool;
use super::store::{Collected, Inventory, Store};
use super::walk::{self, Policy, Root, Source, Visitor, Walk};
use super::watch::{Place, Watches};
use crate::config::Config;
use crate::files::compressible::Compressible;
use crate::files::entry::Coding;
use crate::files::variants::Fingerprint;
use crate::sys::Errno;

/// What is done, as the configuration says it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is walked.
    pub roots: Vec<Root>,
    /// What is made.
    pub codings: Vec<Coding>,
    /// Of what.
    pub compressible: Compressible,
    /// Smaller sources are left alone.
    pub min_size: u64,
    /// Larger sources are left alone.
    pub max_size: u64,
    /// How long a variant stays that nothing needs.
    pub keep: Duration,
    /// Jobs at a time.
    pub threads: usize,
    /// Whether everything is made anew.
    pub force: bool,
    /// Whether large sources come first, so that no thread is left with one at the end; else small ones, so
    /// that most are soon ready.
    pub largest_first: bool,
}

impl Settings {
    /// As a configuration says it.
    pub fn of(config: &Config, threads: usize) -> Self {
        let cache = &config.cache;
        Self {
            roots: walk::roots(config),
            codings: cache.encodings.iter().map(|encoding| Coding::of(*encoding)).collect(),
            compressible: Compressible::new(&cache.types),
            min_size: cache.min_size,
            max_size: cache.max_size,
            keep: cache.keep,
            threads,
            force: false,
            largest_first: false,
        }
    }
}

/// What is told while a pass goes on.
#[derive(Debug)]
pub enum Progress<'a> {
    /// So much is to be done.
    Planned {
        /// Sources that lack a variant.
        files: u64,
        /// Their bytes, once for each missing variant.
        bytes: u64,
    },
    /// One source is done.
    Done {
        /// Its bytes, once for each variant it lacked.
        bytes: u64,
        /// What was made of it.
        made: &'a [Made],
        /// Its size.
        size: u64,
    },
    /// A source was skipped.
    Skipped {
        /// Where it lies.
        path: String,
        /// Why.
        reason: String,
    },
    /// Nothing happened for a while.
    Waiting,
}

/// Hears of progress, and says whether to go on.
pub type Each<'e> = dyn FnMut(Progress) -> ControlFlow<()> + 'e;

/// What was done for one coding.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Tally {
    /// Variants.
    pub files: u64,
    /// Bytes of their sources.
    pub before: u64,
    /// Bytes of them.
    pub after: u64,
    /// How many of them were taken over from equal contents.
    pub reused: u64,
    /// How many sources it makes no smaller.
    pub larger: u64,
    /// Time of the processor, in microseconds.
    pub microseconds: u64,
}

/// A source that shrank.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Saving {
    /// Where it lies.
    pub path: String,
    /// Its size.
    pub before: u64,
    /// The smallest variant's.
    pub after: u64,
}

/// What a pass came to.
#[derive(Debug, Default)]
pub struct Summary {
    /// Files that are worth compressing.
    pub sources: u64,
    /// Their bytes.
    pub source_bytes: u64,
    /// Sources that lacked a variant.
    pub planned: u64,
    /// What was done, by coding.
    pub tallies: HashMap<Coding, Tally>,
    /// The largest savings, the largest first.
    pub savings: Vec<Saving>,
    /// Sources that could not be done, and directories that could not be listed.
    pub skipped: u64,
    /// What was taken away.
    pub collected: Collected,
    /// Why the cache could not be written to; nothing more was tried then.
    pub refused: Option<String>,
    /// Whether it was broken off.
    pub is_broken_off: bool,
}

const SAVINGS_MAX: usize = 10;

/// Parts of `keep`: variants are looked at after a quarter of it, and noted as needed after half, so that
/// none that is needed grows as old as those that are taken away.
const VERIFY_PART: u32 = 4;
const RENEW_PART: u32 = 2;

/// What is remembered from one pass to the next.
#[derive(Debug)]
pub struct Passes {
    /// What is done.
    pub settings: Settings,
    store: Store,
    contents: Contents,
    are_contents_known: bool,
    /// When the footers of all variants were last read.
    verified: Option<SystemTime>,
}

impl Passes {
    /// No pass was made yet.
    pub fn new(settings: Settings, store: Store) -> Self {
        let contents = Contents::default();
        Self { settings, store, contents, are_contents_known: false, verified: None }
    }

    /// What is being written.
    pub fn drafts(&self) -> &Drafts {
        self.store.drafts()
    }

    /// Walks all roots and makes what is missing. With `only_plan`, says what is missing and makes nothing.
    pub fn all(&mut self, only_plan: bool, mut watches: Option<&mut Watches>, each: &mut Each) -> Summary {
        let now = SystemTime::now();
        // Variants are found by their names; whether they are whole, and still noted as needed, is looked
        // at much less often.
        let is_due = |at| now.duration_since(at).is_ok_and(|age| age >= self.settings.keep / VERIFY_PART);
        let verify = self.verified.is_none_or(is_due);
        let mut plan = Plan::new(self, verify, each);
        let mut opened = Vec::new();
        for (index, root) in self.settings.roots.iter().enumerate() {
            if let Some(watches) = watches.as_deref_mut() {
                watches.forget_root(index);
            }
            let open = plan.root(index, root, watches.as_deref_mut());
            opened.push(open.map(|open| (open, root.name.clone())));
        }
        let Plan { jobs, inventories, incomplete, mut summary, each, .. } = plan;
        self.verified = if verify { Some(now) } else { self.verified };
        if !jobs.is_empty() && !only_plan {
            self.learn_contents(&inventories);
        }
        self.work(jobs, &opened, only_plan, &mut summary, each);
        if !only_plan && !summary.is_broken_off && summary.refused.is_none() {
            self.collect(&inventories, &incomplete, &mut summary);
        }
        summary
    }

    /// Walks directories in which something changed, and what is new beneath them.
    pub fn some(&mut self, changed: &BTreeSet<Place>, watches: &mut Watches, each: &mut Each) -> Summary {
        let mut plan = Plan::new(self, false, each);
        let mut opened = Vec::new();
        for (index, root) in self.settings.roots.iter().enumerate() {
            let mut paths = changed.iter().filter(|(of, _)| *of == index).map(|(_, path)| path).peekable();
            let open = paths.peek().and_then(|_| walk::open_root(&root.path).ok());
            if let Some(open) = &open {
                for path in paths {
                    for policy in &root.policies {
                        plan.walk(index, root, *policy, open.as_fd(), Some(path), Some(watches));
                    }
                }
            }
            opened.push(open.map(|open| (open, root.name.clone())));
        }
        let Plan { jobs, mut summary, each, .. } = plan;
        self.work(jobs, &opened, false, &mut summary, each);
        summary
    }

    fn collect(&self, inventories: &[Inventory], incomplete: &BTreeSet<usize>, summary: &mut Summary) {
        for (index, root) in self.settings.roots.iter().enumerate() {
            if incomplete.contains(&index) {
                continue;
            }
            let is_needed =
                |print: &Fingerprint| inventories[index].get(print).is_some_and(|kept| kept.is_needed);
            match self.store.collect(&root.name, self.settings.keep, is_needed) {
                Ok(collected) => {
                    summary.collected.files += collected.files;
                    summary.collected.bytes += collected.bytes;
                }
                Err(error) => summary.refused = Some(self.refusal(&error)),
            }
        }
    }

    fn work(
        &mut self,
        mut jobs: Vec<Job>,
        opened: &[Option<(OwnedFd, String)>],
        only_plan: bool,
        summary: &mut Summary,
        each: &mut Each,
    ) {
        jobs.sort_by_key(|job| job.source.facts.size);
        if self.settings.largest_first {
            jobs.reverse();
        }
        let weight = |job: &Job| job.source.facts.size * job.missing.len() as u64;
        summary.planned = jobs.len() as u64;
        let planned = Progress::Planned { files: summary.planned, bytes: jobs.iter().map(weight).sum() };
        summary.is_broken_off = each(planned).is_break();
        if jobs.is_empty() || only_plan || summary.is_broken_off || summary.refused.is_some() {
            return;
        }
        for root in &self.settings.roots {
            if let Err(error) = self.store.open_root(&root.name) {
                summary.refused = Some(self.refusal(&error));
                return;
            }
        }
        let workshop = Workshop {
            store: &self.store,
            contents: (!self.settings.force).then_some(&self.contents),
            roots: opened,
            max_size: self.settings.max_size,
        };
        let missing: HashMap<(usize, &[u8]), u64> =
            jobs.iter().map(|job| ((job.root, job.source.path.as_slice()), weight(job))).collect();
        let mut is_broken_off = false;
        let worked = pool::run(&workshop, &jobs, self.settings.threads, |done| {
            let Some(done) = done else {
                let flow = each(Progress::Waiting);
                is_broken_off |= flow.is_break();
                return flow;
            };
            let bytes = missing.get(&(done.root, done.path.as_slice())).copied().unwrap_or_default();
            let path =
                self.settings.roots.get(done.root).map(|root| named(root, &done.path)).unwrap_or_default();
            summary.take(&path, done.size, &done.made);
            let mut flow = each(Progress::Done { bytes, made: &done.made, size: done.size });
            match done.failure {
                None | Some(Failure::Changed) => {}
                Some(Failure::Source(error)) => {
                    summary.skipped += 1;
                    let skipped = Progress::Skipped { path, reason: error.to_string() };
                    flow = if each(skipped).is_break() { ControlFlow::Break(()) } else { flow };
                }
                Some(Failure::Cache(error)) => {
                    summary.refused.get_or_insert_with(|| self.refusal(&error));
                }
            }
            is_broken_off |= flow.is_break();
            flow
        });
        summary.is_broken_off |= is_broken_off;
        if let Err(error) = worked {
            summary.refused.get_or_insert_with(|| format!("cannot make threads: {error}"));
        }
    }

    /// Variants of earlier states of the sites serve for equal contents: the footers of all are read, once.
    fn learn_contents(&mut self, inventories: &[Inventory]) {
        if self.are_contents_known || self.settings.force {
            return;
        }
        self.are_contents_known = true;
        for (root, inventory) in self.settings.roots.iter().zip(inventories) {
            // Those that are needed were read already.
            for (fingerprint, kept) in inventory.iter().filter(|(_, kept)| !kept.is_needed) {
                for coding in Coding::ALL.into_iter().filter(|coding| kept.has(*coding)) {
                    if let Some((footer, _)) = self.store.footer(&root.name, fingerprint, coding) {
                        self.contents.note(footer.source_hash, coding, &root.name, *fingerprint);
                    }
                }
            }
        }
    }

    fn refusal(&self, error: &io::Error) -> String {
        format!("cannot write to the cache {}: {error}", self.store.directory().display())
    }
}

impl Summary {
    fn take(&mut self, path: &str, size: u64, made: &[Made]) {
        for one in made {
            let tally = self.tallies.entry(one.coding).or_default();
            match one.bytes {
                None => tally.larger += 1,
                Some(bytes) => {
                    tally.files += 1;
                    tally.before += size;
                    tally.after += bytes;
                    tally.reused += u64::from(one.is_reused);
                }
            }
            tally.microseconds += u64::try_from(one.time.as_micros()).unwrap_or(u64::MAX);
        }
        let Some(after) = made.iter().filter_map(|one| one.bytes).min() else { return };
        let saved = |saving: &Saving| std::cmp::Reverse(saving.before - saving.after.min(saving.before));
        self.savings.push(Saving { path: path.to_owned(), before: size, after });
        self.savings.sort_by_key(saved);
        self.savings.truncate(SAVINGS_MAX);
    }
}

/// What is missing, found by walking.
struct Plan<'a, 'e> {
    settings: &'a Settings,
    store: &'a Store,
    contents: &'a Contents,
    verify: bool,
    barred: BTreeSet<(u64, u64)>,
    each: &'e mut Each<'e>,
    jobs: Vec<Job>,
    inventories: Vec<Inventory>,
    /// What was read of the inventories of which not all was read.
    parts: BTreeSet<(usize, PathBuf)>,
    /// Directories that were not watched when this began, where not everything is walked.
    new: BTreeSet<Place>,
    /// Roots of which not everything could be looked at: nothing of theirs may be taken away.
    incomplete: BTreeSet<usize>,
    summary: Summary,
}

impl<'a, 'e> Plan<'a, 'e> {
    fn new(passes: &'a Passes, verify: bool, each: &'e mut Each<'e>) -> Self {
        let facts = std::fs::metadata(passes.store.directory());
        Self {
            settings: &passes.settings,
            store: &passes.store,
            contents: &passes.contents,
            verify,
            barred: facts.iter().map(|facts| (facts.dev(), facts.ino())).collect(),
            each,
            jobs: Vec::new(),
            inventories: vec![Inventory::new(); passes.settings.roots.len()],
            parts: BTreeSet::new(),
            new: BTreeSet::new(),
            incomplete: BTreeSet::new(),
            summary: Summary::default(),
        }
    }

    fn root(&mut self, index: usize, root: &Root, mut watches: Option<&mut Watches>) -> Option<OwnedFd> {
        match self.store.inventory(&root.name) {
            Ok(inventory) => self.inventories[index] = inventory,
            Err(error) => {
                let what = self.store.directory().display();
                self.summary.refused = Some(format!("cannot read the cache {what}: {error}"));
                return None;
            }
        }
        let open = match walk::open_root(&root.path) {
            Ok(opened) => opened,
            Err(errno) => {
                self.incomplete.insert(index);
                self.skip(root.path.display().to_string(), errno.to_string());
                return None;
            }
        };
        for policy in &root.policies {
            self.walk(index, root, *policy, open.as_fd(), None, watches.as_deref_mut());
        }
        Some(open)
    }

    /// Walks a root, or what is new `from` a directory on.
    fn walk(
        &mut self,
        index: usize,
        root: &Root,
        policy: Policy,
        open: BorrowedFd<'_>,
        from: Option<&[u8]>,
        watches: Option<&mut Watches>,
    ) {
        let barred = self.barred.clone();
        let walk = Walk { root: open, policy, compressible: &self.settings.compressible, barred: &barred };
        let mut meeting = Meeting { plan: self, index, root, watches, from };
        walk.run(from.unwrap_or_default(), true, &mut meeting);
    }

    /// Reads the part of the inventory that a source belongs to, where the whole of it was not read.
    fn look_up(&mut self, index: usize, name: &str, fingerprint: &Fingerprint) {
        if self.parts.insert((index, Store::part(fingerprint)))
            && let Err(error) = self.store.inventory_beside(name, fingerprint, &mut self.inventories[index])
        {
            let what = self.store.directory().display();
            self.summary.refused = Some(format!("cannot read the cache {what}: {error}"));
        }
    }

    fn meet(&mut self, index: usize, name: &str, source: Source) -> Vec<Coding> {
        let fingerprint = Fingerprint::of(&source.facts);
        let kept = self.inventories[index].entry(fingerprint).or_default();
        if kept.is_needed {
            // Met by another name.
            return Vec::new();
        }
        kept.is_needed = true;
        self.summary.sources += 1;
        self.summary.source_bytes += source.facts.size;
        let codings = self.settings.codings.iter().copied();
        if self.verify && !self.settings.force {
            for coding in codings.clone().filter(|coding| kept.has(*coding)).collect::<Vec<_>>() {
                match self.store.footer(name, &fingerprint, coding) {
                    None => kept.forget(coding),
                    Some((footer, needed)) => {
                        self.contents.note(footer.source_hash, coding, name, fingerprint);
                        let age = SystemTime::now().duration_since(needed);
                        if age.is_ok_and(|age| age >= self.settings.keep / RENEW_PART) {
                            self.store.renew(name, &fingerprint, coding);
                        }
                    }
                }
            }
        }
        let is_missing = |coding: &Coding| self.settings.force || !kept.settles(*coding);
        let missing: Vec<Coding> = codings.clone().filter(is_missing).collect();
        let deadly = codings.filter(|coding| kept.is_deadly(*coding)).collect();
        if !missing.is_empty() {
            let is_suspect = missing.iter().any(|coding| kept.is_suspect(*coding));
            self.jobs.push(Job { root: index, source, missing, is_suspect });
        }
        deadly
    }

    fn skip(&mut self, path: String, reason: String) {
        self.summary.skipped += 1;
        // Whether to go on is asked for again soon.
        let _ = (self.each)(Progress::Skipped { path, reason });
    }
}

/// What happens on a walk.
struct Meeting<'p, 'a, 'e, 'w> {
    plan: &'p mut Plan<'a, 'e>,
    index: usize,
    root: &'p Root,
    watches: Option<&'w mut Watches>,
    /// Where the walk began, if only what is new from there on is walked.
    from: Option<&'p [u8]>,
}

impl Meeting<'_, '_, '_, '_> {
    fn skip(&mut self, path: &[u8], reason: String) {
        let path = named(self.root, path);
        self.plan.skip(path, reason);
    }
}

impl Visitor for Meeting<'_, '_, '_, '_> {
    fn enter(&mut self, path: &[u8], directory: BorrowedFd<'_>) -> bool {
        let was_new = self.watches.as_mut().is_none_or(|watches| watches.add(self.index, path, directory));
        // To be watched is a matter of the root; what another site serves of it was perhaps not walked yet.
        let place = (self.index, path.to_vec());
        let is_new = self.plan.new.contains(&place) || was_new;
        if is_new && self.from.is_some() {
            self.plan.new.insert(place);
        }
        self.from.is_none_or(|from| is_new || from == path)
    }

    fn meet(&mut self, source: Source) {
        let (size, settings) = (source.facts.size, self.plan.settings);
        if size < settings.min_size.max(1) || size > settings.max_size {
            return;
        }
        if self.from.is_some() {
            self.plan.look_up(self.index, &self.root.name, &Fingerprint::of(&source.facts));
        }
        let path = source.path.clone();
        for coding in self.plan.meet(self.index, &self.root.name, source) {
            self.skip(
                &path,
                format!("compressing it with {} ended the process again and again", coding.name()),
            );
        }
    }

    fn miss(&mut self, path: &[u8], errno: Errno) {
        // It went while the walk was on its way.
        if errno == Errno::NOENT {
            return;
        }
        self.plan.incomplete.insert(self.index);
        self.skip(path, errno.to_string());
    }
}

fn named(root: &Root, path: &[u8]) -> String {
    root.path.join(std::ffi::OsStr::from_bytes(path)).display().to_string()
}
