//! Entries by site and path: how fresh they are, and which go when room is needed.
//!
//! Eviction is SIEVE: entries stand in the order in which they came; a hand walks from the oldest
//! to the newest, spares once what was used since it last passed, and lets go of the rest. A crawl
//! through the whole site so pushes out only what a crawl brought in, and a hit writes one bit.
//!
//! What is kept costs three different things, so there are three shelves, each with its own bound:
//! bodies in RAM (bytes), open files (descriptors), and small answers (count and bytes) — the last so
//! that a scan for paths that do not exist cannot push out a site.
//!
//! Pure: time comes as a value.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::entry::{Body, Entry, Representation, SiteId, Target};
use crate::sys::bytes::Gauge;

/// What an entry costs besides its bodies, fields and key: the slot, the reference counts, the
/// table and the allocator's rounding.
const ENTRY_OVERHEAD: u64 = 640;

/// The part of the memory that lookups may hold for bodies they are reading: one in this many.
const READING_PART: u64 = 8;

/// Half a second of decoding on a slow core. What is decoded is kept however large `file_max` lets files be:
/// decoding it again for each client that wants it would keep the helper thread busy with nothing else.
const DECODED_BYTES_MAX: u64 = 64 << 20;

/// Small answers kept: at about 100 bytes of path each this is half a megabyte.
const SMALL_MAX: usize = 4096;

/// Entries passed by the hand for one that goes. Where so many are being sent, memory is in use by
/// clients and not by what could be let go; looking on would only take time from them.
const SCAN_MAX: usize = 1024;

/// What the cache holds and did, for the status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Answered from an entry that was fresh.
    pub hits: u64,
    /// Not there.
    pub misses: u64,
    /// There, but due for another look.
    pub stale: u64,
    /// Entries pushed out.
    pub evicted: u64,
    /// Entries.
    pub entries: u64,
    /// Bytes of bodies in RAM, also of those only being sent, and of what is kept around them.
    pub bytes: u64,
    /// Descriptors held by entries.
    pub descriptors: u64,
}

/// The memory that bodies may take, and who has it.
#[derive(Debug)]
pub struct Budget {
    /// Counts the bodies in RAM, those that only responses still hold included.
    pub gauge: Gauge,
    reserved: Cell<u64>,
    /// What entries take besides their bodies.
    overhead: Cell<u64>,
    limit: u64,
}

impl Budget {
    /// Memory of `limit` bytes.
    pub fn new(limit: u64) -> Rc<Self> {
        let (reserved, overhead) = (Cell::new(0), Cell::new(0));
        Rc::new(Self { gauge: Gauge::default(), reserved, overhead, limit })
    }

    /// Sets `bytes` aside for a body about to be read; `None` when the memory is in use, mostly
    /// because clients read slowly what the cache let go of.
    pub fn reserve(self: &Rc<Self>, bytes: u64) -> Option<Reservation> {
        let reserved = self.reserved.get().checked_add(bytes)?;
        let held = self.held().checked_add(reserved)?;
        // One body may always be read while there is room, or those beyond the part never could.
        let reading_fits = reserved <= self.limit / READING_PART || self.reserved.get() == 0;
        if !reading_fits || held > self.limit {
            return None;
        }
        self.reserved.set(reserved);
        Some(Reservation { budget: Rc::clone(self), bytes })
    }

    /// The most that decoding a body may take, the coded bytes included: what lookups may hold, and not
    /// so much that the helper thread is busy for long.
    pub fn decoded_max(&self) -> u64 {
        (self.limit / READING_PART).min(DECODED_BYTES_MAX)
    }

    /// What bodies and entries take.
    fn held(&self) -> u64 {
        self.gauge.held() + self.overhead.get()
    }

    /// What bodies and entries may take while nothing is being read.
    fn kept_max(&self) -> u64 {
        self.limit - self.limit / READING_PART
    }
}

/// What may be kept in RAM.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Whose memory.
    pub budget: Rc<Budget>,
    /// Larger files are not read.
    pub file_max: u64,
}

/// Memory set aside until the body is counted by the gauge, or not read after all.
#[derive(Debug)]
pub struct Reservation {
    budget: Rc<Budget>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.reserved.set(self.budget.reserved.get() - self.bytes);
    }
}

/// Entries by site and path.
pub struct Cache {
    budget: Rc<Budget>,
    revalidate: Duration,
    descriptors_max: usize,
    seed: u64,
    shelves: [Shelf; 3],
    stats: Stats,
}

/// Which shelf; also the order in which they are searched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// All bodies in RAM, or names.
    Memory = 0,
    /// At least one body in an open file.
    Open = 1,
    /// No body.
    Small = 2,
}

impl Cache {
    /// An empty cache. `seed` keeps clients from choosing paths that collide.
    pub fn new(budget: Rc<Budget>, revalidate: Duration, descriptors_max: usize, seed: u64) -> Self {
        let shelves = [Shelf::default(), Shelf::default(), Shelf::default()];
        Self { budget, revalidate, descriptors_max, seed, shelves, stats: Stats::default() }
    }

    /// What a path leads to, if that was found out or confirmed within the time a change may stay
    /// unseen.
    pub fn fresh(&mut self, site: SiteId, path: &[u8], now: Instant) -> Option<&Rc<Entry>> {
        let hash = self.hash(site, path);
        let Some(entry) = self.shelves.iter().find_map(|shelf| shelf.find(hash, site, path)) else {
            self.stats.misses += 1;
            return None;
        };
        if now.saturating_duration_since(entry.checked.get()) < self.revalidate {
            self.stats.hits += 1;
            Some(entry)
        } else {
            self.stats.stale += 1;
            None
        }
    }

    /// What a path led to when it was last looked at, however long ago: for lookups, which compare.
    pub fn peek(&self, site: SiteId, path: &[u8]) -> Option<&Rc<Entry>> {
        let hash = self.hash(site, path);
        self.shelves.iter().find_map(|shelf| shelf.find_node(hash, site, path)).map(|node| &node.entry)
    }

    /// Keeps what a path was found to lead to, in place of what it led to before. What does not last is not
    /// kept and takes no place: what was known is as fresh as it was, and bodies that are due for another look
    /// need not be read again after it, once the means for that look are back.
    pub fn insert(&mut self, site: SiteId, path: &[u8], entry: &Rc<Entry>) {
        if !entry.lasting {
            return;
        }
        let hash = self.hash(site, path);
        let (class, cost) = weigh(path, entry);
        if let Some(node) = self.shelves[class as usize].find_node(hash, site, path)
            && Rc::ptr_eq(&node.entry, entry)
        {
            return;
        }
        for shelf in &mut self.shelves {
            shelf.remove(hash, site, path);
        }
        self.count_overhead();
        if cost.kept() > self.budget.kept_max() {
            return;
        }
        self.shelves[class as usize].insert(hash, site, path, Rc::clone(entry), cost);
        self.count_overhead();
        self.make_room();
    }

    /// Forgets all paths of a site: its root leads elsewhere.
    pub fn forget(&mut self, site: SiteId) {
        for shelf in &mut self.shelves {
            shelf.forget(site);
        }
        self.count_overhead();
    }

    /// What it holds and did.
    pub fn stats(&self) -> Stats {
        Stats {
            entries: self.shelves.iter().map(|shelf| shelf.table.len() as u64).sum(),
            bytes: self.budget.held(),
            descriptors: self.shelves[Class::Open as usize].descriptors as u64,
            ..self.stats
        }
    }

    fn hash(&self, site: SiteId, path: &[u8]) -> u64 {
        xxh3_64_with_seed(path, self.seed ^ u64::from(site))
    }

    fn count_overhead(&self) {
        self.budget.overhead.set(self.shelves.iter().map(|shelf| shelf.overhead).sum());
    }

    fn make_room(&mut self) {
        let kept_max = self.budget.kept_max();
        let small_bytes_max = kept_max / 32;
        let small = &mut self.shelves[Class::Small as usize];
        while (small.table.len() > SMALL_MAX || small.overhead > small_bytes_max) && small.evict(|_| true) {
            self.stats.evicted += 1;
        }
        let open = &mut self.shelves[Class::Open as usize];
        while open.descriptors > self.descriptors_max && open.evict(|_| true) {
            self.stats.evicted += 1;
        }
        // Letting go of a body that is being sent gives no memory back, and such a body is in
        // demand: those stay. A large file's variants may be in RAM while the file is open, so either
        // shelf may be the one that fills the memory; the one with more gives first.
        self.count_overhead();
        while self.budget.held() > kept_max {
            let kept = |class: Class| self.shelves[class as usize].kept();
            let (more, less) = match kept(Class::Memory) >= kept(Class::Open) {
                true => (Class::Memory, Class::Open),
                false => (Class::Open, Class::Memory),
            };
            let freed = self.shelves[more as usize].evict(|entry| !is_being_sent(entry))
                || self.shelves[less as usize].evict(|entry| !is_being_sent(entry))
                || self.shelves[Class::Small as usize].evict(|_| true);
            if !freed {
                break;
            }
            self.stats.evicted += 1;
            self.count_overhead();
        }
    }
}

fn is_being_sent(entry: &Rc<Entry>) -> bool {
    let Target::File(file) = &entry.target else { return false };
    file.representations.iter().any(|form| match &form.body {
        Body::Memory(bytes) => bytes.is_shared(),
        Body::File(_) => false,
    })
}

/// What an entry takes.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Bytes besides the bodies.
    overhead: u64,
    /// Bytes of bodies, which the gauge counts.
    bodies: u64,
    descriptors: usize,
}

impl Cost {
    fn kept(self) -> u64 {
        self.overhead + self.bodies
    }
}

fn weigh(path: &[u8], entry: &Entry) -> (Class, Cost) {
    let mut cost = Cost { overhead: ENTRY_OVERHEAD + path.len() as u64, ..Cost::default() };
    let class = match &entry.target {
        Target::File(file) => {
            // Room for one form is in the overhead of every entry.
            cost.overhead += ((file.representations.len() - 1) * size_of::<Representation>()) as u64;
            for form in &file.representations {
                cost.overhead += (form.fields.len() + form.fields_not_modified.len()) as u64;
                match &form.body {
                    Body::Memory(bytes) => cost.bodies += bytes.len() as u64,
                    Body::File(_) => cost.descriptors += 1,
                }
            }
            if cost.descriptors > 0 { Class::Open } else { Class::Memory }
        }
        Target::Listing(listing) => {
            // 160: the facts, the name's own allocation and its rounding.
            cost.overhead += listing.names.iter().map(|name| 160 + name.name.len() as u64).sum::<u64>();
            Class::Memory
        }
        Target::Directory | Target::Refused(_) => Class::Small,
    };
    (class, cost)
}

/// No node.
const NONE: u32 = u32::MAX;

/// One SIEVE.
struct Shelf {
    table: HashTable<u32>,
    nodes: Vec<Option<Node>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    hand: u32,
    overhead: u64,
    bodies: u64,
    descriptors: usize,
}

struct Node {
    hash: u64,
    site: SiteId,
    path: Box<[u8]>,
    entry: Rc<Entry>,
    cost: Cost,
    used: Cell<bool>,
    newer: u32,
    older: u32,
}

impl Default for Shelf {
    fn default() -> Self {
        Self {
            table: HashTable::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            hand: NONE,
            overhead: 0,
            bodies: 0,
            descriptors: 0,
        }
    }
}

impl Shelf {
    /// Bytes that its entries keep from others.
    fn kept(&self) -> u64 {
        self.overhead + self.bodies
    }

    fn find(&self, hash: u64, site: SiteId, path: &[u8]) -> Option<&Rc<Entry>> {
        let node = self.find_node(hash, site, path)?;
        node.used.set(true);
        Some(&node.entry)
    }

    fn find_node(&self, hash: u64, site: SiteId, path: &[u8]) -> Option<&Node> {
        let index = self.table.find(hash, |&index| self.node(index).is(hash, site, path))?;
        Some(self.node(*index))
    }

    fn insert(&mut self, hash: u64, site: SiteId, path: &[u8], entry: Rc<Entry>, cost: Cost) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 entries of ENTRY_OVERHEAD bytes")
        });
        self.overhead += cost.overhead;
        self.bodies += cost.bodies;
        self.descriptors += cost.descriptors;
        let used = Cell::new(false);
        let older = self.newest;
        let node = Node { hash, site, path: path.into(), entry, cost, used, newer: NONE, older };
        self.nodes[index as usize] = Some(node);
        match older {
            NONE => self.oldest = index,
            older => self.node_mut(older).newer = index,
        }
        self.newest = index;
        let nodes = &self.nodes;
        self.table.insert_unique(hash, index, |&index| hash_of(nodes, index));
    }

    fn remove(&mut self, hash: u64, site: SiteId, path: &[u8]) {
        if let Some(&index) = self.table.find(hash, |&index| self.node(index).is(hash, site, path)) {
            self.unlink(index);
        }
    }

    /// Lets one entry go that `may_go` and was not used since the hand last passed. `false`: none.
    fn evict(&mut self, may_go: impl Fn(&Rc<Entry>) -> bool) -> bool {
        // The first round may only clear marks; a second without a victim means that none may go.
        for _ in 0..SCAN_MAX.min(2 * self.table.len()) {
            if self.hand == NONE {
                self.hand = self.oldest;
            }
            let index = self.hand;
            let node = self.node(index);
            let victim = !node.used.replace(false) && may_go(&node.entry);
            self.hand = node.newer;
            if victim {
                self.unlink(index);
                return true;
            }
        }
        false
    }

    fn forget(&mut self, site: SiteId) {
        let mut index = self.oldest;
        while index != NONE {
            let node = self.node(index);
            let (newer, found) = (node.newer, node.site == site);
            if found {
                self.unlink(index);
            }
            index = newer;
        }
    }

    fn unlink(&mut self, index: u32) {
        let node = self.nodes[index as usize].take().expect("only linked nodes are unlinked");
        match node.newer {
            NONE => self.newest = node.older,
            newer => self.node_mut(newer).older = node.older,
        }
        match node.older {
            NONE => self.oldest = node.newer,
            older => self.node_mut(older).newer = node.newer,
        }
        if self.hand == index {
            self.hand = node.newer;
        }
        self.overhead -= node.cost.overhead;
        self.bodies -= node.cost.bodies;
        self.descriptors -= node.cost.descriptors;
        if let Ok(found) = self.table.find_entry(node.hash, |&other| other == index) {
            found.remove();
        }
        self.free.push(index);
    }

    fn node(&self, index: u32) -> &Node {
        self.nodes[index as usize].as_ref().expect("the table and the list name only linked nodes")
    }

    fn node_mut(&mut self, index: u32) -> &mut Node {
        self.nodes[index as usize].as_mut().expect("the list names only linked nodes")
    }
}

impl Node {
    fn is(&self, hash: u64, site: SiteId, path: &[u8]) -> bool {
        self.hash == hash && self.site == site && *self.path == *path
    }
}

fn hash_of(nodes: &[Option<Node>], index: u32) -> u64 {
    nodes[index as usize].as_ref().expect("the table names only linked nodes").hash
}

#[cfg(test)]
mod tests {
    use std::cell::Cell as StdCell;

    use super::*;
    use crate::files::entry::{Coding, File, Listing, Origin};
    use crate::files::represent::{self, Piece};
    use crate::files::route::Sites;
    use crate::files::testing::{facts, site};
    use crate::sys::bytes::Bytes;
    use crate::sys::fds::{Descriptor, Fd, Graveyard};

    const SECOND: Duration = Duration::from_secs(1);

    struct Bench {
        budget: Rc<Budget>,
        cache: Cache,
        start: Instant,
        sites: Sites,
    }

    impl Bench {
        fn new(limit: u64) -> Self {
            let budget = Budget::new(limit);
            let cache = Cache::new(Rc::clone(&budget), SECOND, 3, 7);
            Self { budget, cache, start: Instant::now(), sites: Sites::new(&[site()]) }
        }

        fn entry(&self, target: Target) -> Rc<Entry> {
            Rc::new(Entry { checked: StdCell::new(self.start), lasting: true, target })
        }

        fn file(&self, body: Body) -> Rc<Entry> {
            let piece = Piece::new(None, Origin::Itself, facts(), true, body);
            let file: File = represent::file(self.sites.site(0), b"/a", None, vec![piece], 0);
            self.entry(Target::File(file))
        }

        fn body(&self, length: usize) -> Rc<Entry> {
            self.file(Body::Memory(Bytes::new(vec![b'x'; length], &self.budget.gauge)))
        }

        fn insert(&mut self, path: &str, entry: &Rc<Entry>) {
            self.cache.insert(0, path.as_bytes(), entry);
        }

        fn has(&mut self, path: &str) -> bool {
            self.cache.fresh(0, path.as_bytes(), self.start).is_some()
        }
    }

    #[test]
    fn entries_are_fresh_for_a_while_and_stay_known() {
        let mut bench = Bench::new(1 << 20);
        let entry = bench.body(10);
        bench.insert("/a", &entry);
        assert!(bench.cache.fresh(0, b"/a", bench.start + SECOND / 2).is_some());
        assert!(bench.cache.fresh(0, b"/a", bench.start + SECOND).is_none());
        assert!(bench.cache.peek(0, b"/a").is_some());
        assert!(bench.cache.fresh(1, b"/a", bench.start).is_none(), "another site's");
        entry.checked.set(bench.start + SECOND);
        bench.insert("/a", &entry);
        assert!(bench.cache.fresh(0, b"/a", bench.start + SECOND).is_some(), "looked at again");
        let stats = bench.cache.stats();
        assert_eq!((stats.hits, stats.stale, stats.misses, stats.entries), (2, 1, 1, 1));
        bench.cache.forget(0);
        assert!(bench.cache.peek(0, b"/a").is_none());
        drop(entry);
        assert_eq!(bench.cache.stats().bytes, 0);
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut bench = Bench::new(64 * 1024);
        let hot = bench.body(1024);
        bench.insert("/hot", &hot);
        drop(hot);
        for number in 0..500 {
            let path = format!("/{number}");
            let entry = bench.body(1024);
            bench.insert(&path, &entry);
            drop(entry);
            assert!(bench.has("/hot"), "used each time");
            assert!(bench.cache.stats().bytes <= 64 * 1024);
        }
        assert!(bench.cache.stats().entries > 20 && bench.cache.stats().evicted > 400);
        assert!(!bench.has("/0"), "a crawl pushes out itself");
    }

    /// A file too large for RAM may have its variants there, or a sidecar what it decodes to.
    #[test]
    fn whoever_fills_the_memory_gives_it_back() {
        let mut bench = Bench::new(64 * 1024);
        bench.cache.descriptors_max = 1000;
        let graveyard = Graveyard::default();
        for number in 0..10 {
            let page = bench.body(1024);
            bench.insert(&format!("/page/{number}"), &page);
        }
        for number in 0..100 {
            let coded = Bytes::new(vec![b'x'; 4096], &bench.budget.gauge);
            let open = Body::File(Rc::new(Descriptor::new(Fd(-1), &graveyard)));
            let piece = |coding, body| Piece::new(coding, Origin::Itself, facts(), true, body);
            let pieces = vec![piece(None, open), piece(Some(Coding::Gzip), Body::Memory(coded))];
            let file = represent::file(bench.sites.site(0), b"/a.js", None, pieces, 0);
            let entry = bench.entry(Target::File(file));
            bench.insert(&format!("/large/{number}"), &entry);
            assert!(bench.cache.stats().bytes <= 64 * 1024 + 4096);
        }
        assert!((0..10).all(|number| bench.has(&format!("/page/{number}"))));
        assert!(bench.has("/large/99") && !bench.has("/large/50"));
        for number in 10..100 {
            let page = bench.body(1024);
            bench.insert(&format!("/page/{number}"), &page);
        }
        assert!(bench.has("/large/99") && !bench.has("/page/50"), "and the other way round");
    }

    #[test]
    fn bodies_being_sent_stay_and_count() {
        let mut bench = Bench::new(64 * 1024);
        let mut sending = Vec::new();
        for number in 0..200 {
            if let Some(reservation) = bench.budget.reserve(4096) {
                let entry = bench.body(4096);
                drop(reservation);
                bench.insert(&format!("/{number}"), &entry);
                let Target::File(file) = &entry.target else { panic!("a file") };
                sending.push(file.representations[0].body.clone());
            }
        }
        assert!(bench.budget.gauge.held() <= 64 * 1024, "{}", bench.budget.gauge.held());
        assert!(bench.budget.reserve(4096).is_none(), "no memory while all of it is being sent");
        sending.clear();
        let entry = bench.body(10);
        bench.insert("/new", &entry);
        assert!(bench.budget.reserve(4096).is_some(), "and room again after that");
    }

    #[test]
    fn lookups_read_within_their_part() {
        let budget = Budget::new(800);
        let first = budget.reserve(700).expect("one may always read");
        assert!(budget.reserve(1).is_none(), "not beside it");
        drop(first);
        let _small = budget.reserve(60).expect("within the part");
        assert!(budget.reserve(40).is_some() && budget.reserve(41).is_none());
        assert!(Budget::new(0).reserve(1).is_none() && budget.reserve(u64::MAX).is_none());
    }

    #[test]
    fn each_kind_has_its_own_bound() {
        let mut bench = Bench::new(1 << 20);
        let page = bench.body(100);
        bench.insert("/page", &page);
        let graveyard = Graveyard::default();
        for number in 0..10 {
            let file = bench.file(Body::File(Rc::new(Descriptor::new(Fd(-1), &graveyard))));
            bench.insert(&format!("/big/{number}"), &file);
        }
        assert_eq!(bench.cache.stats().descriptors, 3);
        for number in 0..2 * SMALL_MAX {
            let nothing = bench.entry(Target::Refused(404));
            bench.insert(&format!("/scan/{number}"), &nothing);
        }
        assert!(bench.cache.stats().entries <= 4 + SMALL_MAX as u64);
        assert!(bench.has("/page") && bench.has("/big/9") && !bench.has("/big/0") && !bench.has("/scan/0"));
        let passing = Rc::new(Entry {
            checked: StdCell::new(bench.start),
            lasting: false,
            target: Target::Refused(503),
        });
        bench.insert("/page", &passing);
        assert!(bench.has("/page"), "what does not last is not kept, and puts nothing out");
        let listing = bench.entry(Target::Listing(Listing::new(Vec::new(), false)));
        bench.insert("/scan/d/", &listing);
        assert!(bench.has("/scan/d/"));
    }
}
