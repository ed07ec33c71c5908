//! Every counter there is, its name and what it says. One page of shared memory per process holds the
//! values: a worker or a companion writes, the supervisor reads. The histograms of
//! [`latency`](super::latency) stand at the end of the page.
//!
//! Nothing is counted per site or per listener: a request would have to find its place among any number of
//! them, and the access log, which names both, can be counted as finely as somebody wants.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::latency::{self, Histogram};
use crate::sys::Error;
use crate::sys::shared::{CELLS, Page};

/// How a counter behaves, and so how several workers' values are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows; values of processes that are gone still count in the sum.
    Total,
    /// The same, and a time in microseconds; monitoring is told seconds.
    Time,
    /// Is now so; only living processes count in the sum.
    Gauge,
    /// A set of bits.
    Bits,
}

/// What is known of a counter besides its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Description {
    /// Which.
    pub counter: Counter,
    /// How it behaves.
    pub kind: Kind,
    /// Its name in `httpd status --json`.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
}

macro_rules! counters {
    ($($counter:ident $kind:ident $name:literal $help:literal)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        pub enum Counter {
            $(#[doc = $help] $counter,)*
        }

        /// All counters, in the order of [`Counter`].
        pub const COUNTERS: &[Description] = &[
            $(Description { counter: Counter::$counter, kind: Kind::$kind, name: $name, help: $help },)*
        ];
    };
}

counters! {
    Accepted          Total "connections_accepted"    "Connections accepted."
    Active            Gauge "connections_active"      "Connections open now."
    Refused           Total "connections_refused"     "Connections closed at once because their address had too many."
    AcceptPaused      Total "accept_paused"           "How often accepting paused: connections or descriptors ran out."
    Requests          Total "requests"                "Requests whose head was read."
    Responses1xx      Total "responses_1xx"           "Interim responses."
    Responses2xx      Total "responses_2xx"           "Successful responses."
    Responses3xx      Total "responses_3xx"           "Redirections, 304 among them."
    Responses4xx      Total "responses_4xx"           "Responses that blame the client."
    Responses5xx      Total "responses_5xx"           "Responses that blame the server."
    Coded             Total "responses_coded"         "Responses sent in a content coding."
    Cut               Total "responses_cut"           "Responses that ended before their last byte."
    BytesReceived     Total "bytes_received"          "Bytes received from clients."
    BytesSent         Total "bytes_sent"              "Bytes sent to clients."
    TimedOut          Total "connections_timed_out"   "Connections ended by a deadline other than the idle one."
    LeasesStarved     Total "leases_starved"          "How often a receive found no free buffer."
    LogLinesLost      Total "log_lines_lost"          "Access log lines that could not be written."
    ProgramsAsked     Total "programs_asked"          "Programs that were asked for."
    ProgramsTurnedAway Total "programs_turned_away"   "Requests for programs refused because too many ran and waited."
    ProgramsFailed    Total "programs_failed"         "Programs whose answer was none, or not whole."
    ProgramsWaiting   Gauge "programs_waiting"        "Requests that wait for their program's turn."
    CacheHits         Total "cache_hits"              "Lookups answered from the cache."
    CacheMisses       Total "cache_misses"            "Lookups that asked the file system."
    CacheEvicted      Total "cache_evicted"           "Entries the cache let go of for want of memory."
    CacheEntries      Gauge "cache_entries"           "Entries in the cache."
    CacheBytes        Gauge "cache_bytes"             "Bytes of bodies and heads in memory."
    LookupsAsync      Total "lookups_async"           "Lookups that had to wait for a disk."
    HandshakesFull    Total "handshakes_full"         "Full TLS handshakes completed."
    HandshakesResumed Total "handshakes_resumed"      "Resumed TLS handshakes completed."
    HandshakesFailed  Total "handshakes_failed"       "TLS handshakes that failed."
    KernelTlsOn       Total "kernel_tls_on"           "Sessions whose encryption was handed to the kernel."
    KernelTlsRefused  Total "kernel_tls_refused"      "Hand-overs of encryption that the kernel refused."
    PrecompressRunning     Gauge "precompress_running"      "1 while files are being looked for or compressed."
    PrecompressPasses      Total "precompress_passes"       "How often files were looked for."
    PrecompressSources     Gauge "precompress_files"        "Files worth compressing when all were last looked for."
    PrecompressPending     Gauge "precompress_pending"      "Files still to be compressed."
    PrecompressSkipped     Total "precompress_skipped"      "Files and directories that could not be read."
    VariantsBrotli         Total "variants_br"              "Brotli variants made."
    VariantsBrotliBefore   Total "variants_br_before"       "Bytes of their sources."
    VariantsBrotliAfter    Total "variants_br_after"        "Bytes of them."
    VariantsZstd           Total "variants_zstd"            "Zstandard variants made."
    VariantsZstdBefore     Total "variants_zstd_before"     "Bytes of their sources."
    VariantsZstdAfter      Total "variants_zstd_after"      "Bytes of them."
    VariantsGzip           Total "variants_gzip"            "Gzip variants made."
    VariantsGzipBefore     Total "variants_gzip_before"     "Bytes of their sources."
    VariantsGzipAfter      Total "variants_gzip_after"      "Bytes of them."
    VariantsCollected      Total "variants_collected"       "Variants removed because nothing needed them any more."
    RingFeatures      Bits  "ring_features"           "What the worker's ring can do."
    CqOverflows       Total "completion_overflows"    "How often the completion queue overflowed."
    ProgramsStarted   Total "programs_started"        "Programs started."
    ProgramsRefused   Total "programs_refused"        "Requests for programs that were not started."
    ProgramsEnded     Total "programs_ended"          "Programs that did not end by themselves."
    ProgramsRunning   Gauge "programs_running"        "Programs that run now."
}

/// The meaning of the bits of [`Counter::RingFeatures`], from bit 0 up: those of `ring::probe::Features`.
pub const RING_FEATURES: &[&str] = &["buffer-ring", "no-iowait", "restrictions", "cachestat"];

/// What it means to be without each of them, in the same order.
pub const RING_EFFECTS: &[&str] = &[
    "a receive is two system calls (Linux 5.19, or refused by this kernel)",
    "idle cores are shown as waiting for a disk, which is harmless (Linux 6.15)",
    "who takes over a worker may ask more of the ring (Linux 5.10, or refused by this kernel)",
    "whether a file is in memory is judged by its last page (Linux 6.5)",
];

/// Where the histograms begin: at the end, so that a new counter moves none of them.
const LATENCY_AT: usize = CELLS - latency::CELLS;

/// What one process counts. Clones count into the same page.
#[derive(Clone, Debug)]
pub struct Counters(Page);

impl Counters {
    /// All zeros.
    ///
    /// # Errors
    /// When the system gives no shared page.
    pub fn new() -> Result<Self, Error> {
        const { assert!(COUNTERS.len() <= LATENCY_AT) };
        Ok(Self(Page::new()?))
    }

    /// Adds to a counter. Wraps, as counters of a long life do.
    #[inline]
    pub fn add(&self, counter: Counter, amount: u64) {
        // A counter has one writer, so a load and a store do what the dearer locked addition would.
        let cell = &self.0[counter as usize];
        cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// Takes from a gauge.
    #[inline]
    pub fn sub(&self, counter: Counter, amount: u64) {
        let cell = &self.0[counter as usize];
        cell.store(cell.load(Relaxed).saturating_sub(amount), Relaxed);
    }

    /// Sets a gauge or bits.
    #[inline]
    pub fn set(&self, counter: Counter, value: u64) {
        self.0[counter as usize].store(value, Relaxed);
    }

    /// The value.
    #[inline]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// Counts a response by the class of its status; a status that is none is not counted.
    #[inline]
    pub fn add_response(&self, status: u16) {
        let counter = match status / 100 {
            1 => Counter::Responses1xx,
            2 => Counter::Responses2xx,
            3 => Counter::Responses3xx,
            4 => Counter::Responses4xx,
            5 => Counter::Responses5xx,
            _ => return,
        };
        self.add(counter, 1);
    }

    /// Notes how long that many responses took, of a class that is an index of [`latency::CLASSES`].
    #[inline]
    pub fn add_latency(&self, class: usize, responses: u16, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let sum = nanoseconds.wrapping_mul(u64::from(responses));
        for (at, amount) in
            [(latency::bucket_cell(class, took), u64::from(responses)), (latency::sum_cell(class), sum)]
        {
            let cell = &self.0[LATENCY_AT + at];
            cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
        }
    }

    /// A cell of the histograms.
    pub fn latency_cell(&self, at: usize) -> u64 {
        self.0[LATENCY_AT + at].load(Relaxed)
    }

    /// How long responses of a class took.
    pub fn latency(&self, class: usize) -> Histogram {
        Histogram::of(class, |at| self.latency_cell(at))
    }
}

/// The names of the set bits of [`Counter::RingFeatures`].
pub fn ring_features(bits: u64) -> Vec<&'static str> {
    let is_set = |&(bit, _): &(usize, &&str)| bits >> bit & 1 == 1;
    RING_FEATURES.iter().enumerate().filter(is_set).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_names_are_unique() {
        let mut names = HashSet::new();
        for (index, description) in COUNTERS.iter().enumerate() {
            assert_eq!(description.counter as usize, index);
            assert!(names.insert(description.name), "{} twice", description.name);
        }
        assert!(RING_FEATURES.len() <= 64 && RING_FEATURES.len() == RING_EFFECTS.len());
    }

    #[test]
    fn counters_count() {
        let counters = Counters::new().expect("a page");
        counters.add(Counter::Requests, 2);
        counters.clone().add(Counter::Requests, 3);
        counters.set(Counter::CacheBytes, 10);
        counters.sub(Counter::CacheBytes, 4);
        counters.add_response(304);
        counters.add_response(42);
        counters.add_latency(2, 3, Duration::from_micros(20));
        assert_eq!(counters.get(Counter::Requests), 5);
        assert_eq!(counters.get(Counter::CacheBytes), 6);
        assert_eq!(counters.get(Counter::Responses3xx), 1);
        assert_eq!(counters.get(Counter::Responses4xx), 0);
        let histogram = Histogram { count: 3, sum: 60, buckets: vec![(Some(24), 3)] };
        assert_eq!((counters.latency(2), counters.latency(1)), (histogram, Histogram::default()));
        assert_eq!(COUNTERS.iter().map(|known| counters.get(known.counter)).sum::<u64>(), 5 + 6 + 1);
    }

    #[test]
    fn feature_bits_have_names() {
        assert_eq!(ring_features(0b101), ["buffer-ring", "restrictions"]);
        assert!(ring_features(1 << 63).is_empty());
        let named: Vec<_> = crate::ring::probe::Features::names(u64::MAX).collect();
        assert_eq!(RING_FEATURES, named);
    }
}
