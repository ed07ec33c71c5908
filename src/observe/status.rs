//! What the supervisor tells of itself: the answer of the control socket as a value. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::latency::{self, Histogram};
use super::names::{COUNTERS, Counter, Counters, Description, Kind, ring_features};

/// Everything the supervisor knows of itself and its workers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// The supervisor's process number.
    pub pid: u32,
    /// Seconds since the supervisor began.
    pub uptime: u64,
    /// When it began, in seconds since 1970.
    pub started: u64,
    /// `starting`, `serving`, `reloading` or `stopping`.
    pub state: String,
    /// The generation that serves.
    pub generation: u64,
    /// How the last reload ended; `None` when there was none.
    pub last_reload: Option<Reload>,
    /// Where it listens.
    pub listeners: Vec<Listener>,
    /// All workers, those of older generations that still drain among them.
    pub workers: Vec<Worker>,
    /// The processes beside the workers.
    pub companions: Vec<Companion>,
    /// Workers that died and were forked again.
    pub restarts: u64,
    /// The sum of all workers' counters, those that are gone included.
    pub counters: BTreeMap<String, u64>,
    /// How long responses took, by class of status, those of processes that are gone included.
    pub latency: BTreeMap<String, Histogram>,
    /// How much `cache_bytes` may become.
    pub cache_memory: u64,
    /// What the workers' rings can do.
    pub ring_features: Vec<String>,
    /// What happened in a second between two looks; only told by `httpd status --watch --json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
    /// What else there is to know: certificates, kernel TLS.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// How a reload ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reload {
    /// Whether the new generation took over.
    pub succeeded: bool,
    /// When, in seconds since 1970.
    pub at: u64,
    /// Why it did not.
    pub reason: Option<String>,
}

/// A place to listen.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Listener {
    /// The address that was configured.
    pub configured: String,
    /// The address that is listened on.
    pub address: String,
    /// What a client would be given: `http://127.0.0.1:8080`, or the path of a unix socket.
    pub url: String,
    /// Whether it speaks TLS.
    pub tls: bool,
    /// How many sockets share the address.
    pub sockets: u32,
    /// Who opened it: `httpd`, `activation`, or `predecessor`.
    pub origin: String,
}

/// A worker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Worker {
    /// Its generation.
    pub generation: u64,
    /// Its index.
    pub index: u32,
    /// Its process number; `None` while it waits to be forked again.
    pub pid: Option<u32>,
    /// `waiting`, `starting`, `serving`, `draining` or `killed`.
    pub state: String,
    /// Seconds since it was forked.
    pub uptime: u64,
    /// How often its predecessors died.
    pub restarts: u32,
    /// The core it runs on.
    pub core: Option<u32>,
    /// Connections open now.
    pub connections: u64,
    /// Requests so far.
    pub requests: u64,
    /// Bytes sent so far.
    pub bytes_sent: u64,
}

/// A process beside the workers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Companion {
    /// `spawner`, `modules`, `precompressor` or `metrics`.
    pub name: String,
    /// Its generation.
    pub generation: u64,
    /// Its process number; `None` while it waits to be forked again.
    pub pid: Option<u32>,
    /// `waiting`, `running`, `stopping` or `killed`.
    pub state: String,
    /// Seconds since it was forked.
    pub uptime: u64,
    /// How often its predecessors died.
    pub restarts: u32,
}

/// What happened in a second, between two looks.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// How many seconds were between the looks.
    pub seconds: f64,
    /// What each counter gained that only grows.
    pub counters: BTreeMap<String, f64>,
}

impl Rates {
    /// From the earlier of two statuses to the later.
    pub fn between(before: &Status, now: &Status, ago: Duration) -> Self {
        let seconds = ago.as_secs_f64();
        let grows = COUNTERS.iter().filter(|known| matches!(known.kind, Kind::Total | Kind::Time));
        let rate = |known: &Description| {
            let gained = now.counter(known.counter).saturating_sub(before.counter(known.counter));
            (known.name.to_owned(), if seconds > 0.0 { gained as f64 / seconds } else { 0.0 })
        };
        Self { seconds, counters: grows.map(rate).collect() }
    }
}

/// What one program leaves to the next of its sums: by name, since the next one may count more or less.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Carried {
    counters: BTreeMap<String, u64>,
    latency: BTreeMap<String, Histogram>,
}

/// Sums of counters, over processes alive and gone.
#[derive(Clone, Debug)]
pub struct Sums {
    counters: BTreeMap<&'static str, u64>,
    latency: Box<[u64; latency::CELLS]>,
}

impl Default for Sums {
    fn default() -> Self {
        Self { counters: BTreeMap::new(), latency: Box::new([0; latency::CELLS]) }
    }
}

impl Sums {
    /// Adds a process; of one that is gone only what it did counts, not what it had.
    pub fn add(&mut self, counters: &Counters, is_gone: bool) {
        for (at, sum) in self.latency.iter_mut().enumerate() {
            *sum = sum.wrapping_add(counters.latency_cell(at));
        }
        for description in COUNTERS {
            let value = counters.get(description.counter);
            let sum = self.counters.entry(description.name).or_default();
            match description.kind {
                Kind::Total | Kind::Time => *sum = sum.wrapping_add(value),
                Kind::Gauge if !is_gone => *sum += value,
                Kind::Bits if !is_gone => *sum |= value,
                Kind::Gauge | Kind::Bits => {}
            }
        }
    }

    /// What was done so far, in a form that another version of the program understands.
    pub fn carried(&self) -> Carried {
        let grows = COUNTERS.iter().filter(|known| matches!(known.kind, Kind::Total | Kind::Time));
        let value = |known: &Description| self.counters.get(known.name).copied().unwrap_or_default();
        let counters = grows.map(|known| (known.name.to_owned(), value(known))).collect();
        Carried { counters, latency: self.latency() }
    }

    /// Adds what was done before. What this version does not count is left out.
    pub fn carry(&mut self, carried: &Carried) {
        for known in COUNTERS.iter().filter(|known| matches!(known.kind, Kind::Total | Kind::Time)) {
            let sum = self.counters.entry(known.name).or_default();
            *sum = sum.wrapping_add(carried.counters.get(known.name).copied().unwrap_or_default());
        }
        for (class, name) in latency::CLASSES.iter().enumerate() {
            for (at, amount) in carried.latency.get(*name).into_iter().flat_map(|all| all.cells(class)) {
                self.latency[at] = self.latency[at].wrapping_add(amount);
            }
        }
    }

    /// The names of the features all workers' rings have together.
    pub fn ring_features(&self) -> Vec<String> {
        let bits = self.counters.get(name(Counter::RingFeatures)).copied().unwrap_or_default();
        ring_features(bits).into_iter().map(str::to_owned).collect()
    }

    /// How long responses took, by class.
    pub fn latency(&self) -> BTreeMap<String, Histogram> {
        let histogram = |class| Histogram::of(class, |at| self.latency[at]);
        latency::CLASSES
            .iter()
            .enumerate()
            .map(|(class, name)| ((*name).to_owned(), histogram(class)))
            .collect()
    }

    /// By name, without sets of bits.
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        let is_number = |description: &&Description| description.kind != Kind::Bits;
        let value = |name| self.counters.get(name).copied().unwrap_or_default();
        COUNTERS.iter().filter(is_number).map(|known| (known.name.to_owned(), value(known.name))).collect()
    }
}

fn name(counter: Counter) -> &'static str {
    COUNTERS[counter as usize].name
}

impl Status {
    /// A counter's sum.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(name(counter)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let mut sums = Sums::default();
        let (alive, gone) = (Counters::new().unwrap(), Counters::new().unwrap());
        for (counters, requests) in [(&alive, 10), (&gone, 5)] {
            counters.add(Counter::Requests, requests);
            counters.add_latency(0, 1, Duration::from_millis(requests));
            counters.set(Counter::Active, 3);
            counters.set(Counter::RingFeatures, 1);
        }
        sums.add(&alive, false);
        sums.add(&gone, true);
        Status {
            version: "0.1.0".into(),
            pid: 1,
            uptime: 3700,
            state: "serving".into(),
            generation: 2,
            last_reload: Some(Reload { succeeded: false, at: 5, reason: Some("bad\nworse".into()) }),
            listeners: vec![Listener {
                url: "http://127.0.0.1:8080".into(),
                sockets: 2,
                origin: "activation".into(),
                ..Listener::default()
            }],
            workers: vec![Worker {
                generation: 2,
                pid: Some(77),
                state: "serving".into(),
                ..Worker::default()
            }],
            counters: sums.by_name(),
            latency: sums.latency(),
            ring_features: sums.ring_features(),
            ..Status::default()
        }
    }

    #[test]
    fn totals_of_the_dead_count_and_gauges_do_not() {
        let status = status();
        assert_eq!(status.counter(Counter::Requests), 15);
        assert_eq!(status.counter(Counter::Active), 3);
        assert_eq!(status.ring_features, ["buffer-ring"]);
        assert_eq!(status.latency["2xx"].sum, 15_000);
        assert_eq!(status.latency["2xx"].buckets, [(Some(6144), 1), (Some(12_288), 1)]);
    }

    #[test]
    fn what_is_carried_over_is_added_to_what_is_done_since() {
        let counters = Counters::new().unwrap();
        counters.add(Counter::Requests, 7);
        counters.set(Counter::Active, 3);
        counters.add_latency(0, 2, Duration::from_micros(20));
        counters.add_latency(3, 1, Duration::from_secs(100));
        let mut sums = Sums::default();
        sums.add(&counters, false);
        let text = serde_json::to_string(&sums.carried()).unwrap();
        let mut next = Sums::default();
        next.carry(&serde_json::from_str(&text).unwrap());
        next.add(&counters, false);
        let by_name = next.by_name();
        assert_eq!((by_name["requests"], by_name["connections_active"]), (14, 3));
        assert_eq!(next.latency()["2xx"].buckets, [(Some(24), 4)]);
        assert_eq!(
            (next.latency()["2xx"].sum, next.latency()["5xx"].buckets.as_slice()),
            (80, &[(None, 2)][..])
        );
        // Of another version, or not there at all.
        next.carry(
            &serde_json::from_str(r#"{"counters":{"gone":1},"latency":{"2xx":{"buckets":[[25,1]]}}}"#)
                .unwrap(),
        );
        next.carry(&Carried::default());
        assert_eq!(next.by_name(), by_name);
    }

    #[test]
    fn json_can_be_read_back_also_when_it_says_more_or_less() {
        let mut status = status();
        status.more.insert("gateway".into(), serde_json::json!({ "scripts": 3 }));
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
        let less: Status = serde_json::from_str(r#"{"pid": 9, "unheard_of": true}"#).unwrap();
        assert_eq!((less.pid, less.more.len()), (9, 1));
    }
}
