//! What `httpd status` shows: the answer of the control socket as a value, and as text for people. Pure.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::calendar::Moment;
use super::latency::{self, Histogram};
use super::names::{COUNTERS, Counter, Counters, Kind, ring_features};

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
    /// What the workers' rings can do.
    pub ring_features: Vec<String>,
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
}

/// A process beside the workers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Companion {
    /// `spawner`, `precompressor` or `metrics`.
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

/// Sums of counters, over processes alive and gone.
#[derive(Clone, Debug)]
pub struct Sums {
    counters: BTreeMap<&'static str, u64>,
    latency: Box<[u64; latency::CELLS]>,
}

/// [`Sums`] as one program leaves them to the next.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Totals {
    counters: BTreeMap<String, u64>,
    latency: Vec<u64>,
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

    /// What was done so far, for the program that replaces this one.
    pub fn totals(&self) -> Totals {
        let is_total =
            |description: &&super::names::Description| matches!(description.kind, Kind::Total | Kind::Time);
        let value = |name| self.counters.get(name).copied().unwrap_or_default();
        let totals = COUNTERS.iter().filter(is_total);
        Totals {
            counters: totals.map(|known| (known.name.to_owned(), value(known.name))).collect(),
            latency: self.latency.to_vec(),
        }
    }

    /// Goes on from what another program left: what has the same name means the same.
    pub fn resume(&mut self, totals: &Totals) {
        for (name, value) in &totals.counters {
            if let Some(known) = COUNTERS.iter().find(|known| known.name == name) {
                let sum = self.counters.entry(known.name).or_default();
                *sum = sum.wrapping_add(*value);
            }
        }
        // Other classes or other bounds: there is no telling what was counted where.
        if totals.latency.len() == self.latency.len() {
            for (sum, value) in self.latency.iter_mut().zip(&totals.latency) {
                *sum = sum.wrapping_add(*value);
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
        let is_number = |description: &&super::names::Description| description.kind != Kind::Bits;
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

/// A status as people like to read it, with rates from an earlier one where there is one.
#[derive(Debug)]
pub struct Table<'a> {
    /// What to show.
    pub status: &'a Status,
    /// An earlier status of the same supervisor, and how long before.
    pub before: Option<(&'a Status, Duration)>,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status;
        writeln!(
            out,
            "httpd {} {} (pid {}), up {}, generation {}",
            status.version,
            status.state,
            status.pid,
            Span(status.uptime),
            status.generation
        )?;
        match &status.last_reload {
            None => {}
            Some(Reload { succeeded: true, .. }) => writeln!(out, "last reload: succeeded")?,
            Some(Reload { reason, .. }) => {
                writeln!(out, "last reload: failed, the generation before goes on")?;
                for line in reason.iter().flat_map(|reason| reason.lines()) {
                    writeln!(out, "    {line}")?;
                }
            }
        }
        writeln!(out, "\nlisteners")?;
        for Listener { url, sockets, origin, .. } in &status.listeners {
            write!(out, "    {url}, {sockets} socket{}", if *sockets == 1 { "" } else { "s" })?;
            match origin.as_str() {
                "httpd" => writeln!(out)?,
                other => writeln!(out, ", from {other}")?,
            }
        }
        self.workers(out)?;
        self.traffic(out)?;
        if !status.ring_features.is_empty() {
            writeln!(out, "\nring: {}", status.ring_features.join(", "))?;
        }
        for (name, value) in &status.more {
            match value {
                Value::Array(certificates) if name == "certificates" => {
                    writeln!(out, "\ncertificates")?;
                    certificates.iter().try_for_each(|value| writeln!(out, "    {}", Certificate(value)))?;
                }
                Value::Object(members) => {
                    write!(out, "{name}:")?;
                    members.iter().try_for_each(|(name, value)| write!(out, " {name} {value}"))?;
                    writeln!(out)?;
                }
                value => writeln!(out, "{name}: {value}")?,
            }
        }
        Ok(())
    }
}

impl Table<'_> {
    fn workers(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["gen", "worker", "pid", "core", "state", "up", "restarts", "connections", "requests"];
        let optional = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let mut rows = vec![heads.map(str::to_owned)];
        rows.extend(self.status.workers.iter().map(|worker| {
            [
                worker.generation.to_string(),
                worker.index.to_string(),
                optional(worker.pid),
                optional(worker.core),
                worker.state.clone(),
                Span(worker.uptime).to_string(),
                worker.restarts.to_string(),
                worker.connections.to_string(),
                worker.requests.to_string(),
            ]
        }));
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
        let widths: [usize; 9] = std::array::from_fn(width);
        writeln!(out, "\nworkers")?;
        for row in &rows {
            let mut line = String::from("   ");
            for (cell, width) in row.iter().zip(widths) {
                write!(line, " {cell:>width$} ")?;
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn traffic(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "\ncounters")?;
        for known in COUNTERS.iter().filter(|known| known.kind != Kind::Bits) {
            let value = self.status.counter(known.counter);
            // What never happened is left out, but for the figures everybody looks for first.
            let always = [Counter::Accepted, Counter::Active, Counter::Requests, Counter::BytesSent];
            if value == 0 && !always.contains(&known.counter) {
                continue;
            }
            write!(out, "    {:<24}{value:>16}", known.name)?;
            match self.rate(known.counter).filter(|_| known.kind != Kind::Gauge) {
                Some(rate) => writeln!(out, "{rate:>14.1}/s")?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }

    fn rate(&self, counter: Counter) -> Option<f64> {
        let (before, ago) = self.before?;
        let gained = self.status.counter(counter).wrapping_sub(before.counter(counter));
        (!ago.is_zero()).then(|| gained as f64 / ago.as_secs_f64())
    }
}

/// A certificate in one line.
struct Certificate<'a>(&'a Value);

impl fmt::Display for Certificate<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name| self.0[name].as_str().unwrap_or("-");
        let names = self.0["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
        write!(out, "{}: {}", text("site"), names.collect::<Vec<_>>().join(" "))?;
        write!(out, "; {}, by {}", text("key"), text("issuer"))?;
        match self.0["not_after"].as_u64() {
            Some(end) => write!(out, ", until {}", Moment::from(UNIX_EPOCH + Duration::from_secs(end))),
            None => Ok(()),
        }
    }
}

/// Seconds in their two largest units.
struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            seconds @ ..60 => format!("{seconds}s"),
            seconds @ ..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
            seconds @ ..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
            seconds => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
        };
        out.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_goes_on_from_what_was_done_and_not_from_what_there_was() {
        let mut sums = Sums::default();
        let counters = Counters::new().unwrap();
        counters.add(Counter::Requests, 7);
        counters.add_latency(0, 1, Duration::from_millis(7));
        counters.set(Counter::Active, 3);
        sums.add(&counters, false);
        let mut text = serde_json::to_value(sums.totals()).unwrap();
        // Of another version, which counted what this one does not.
        text["counters"]["of old"] = 5.into();
        let mut next = Sums::default();
        next.resume(&serde_json::from_value(text).unwrap());
        next.add(&counters, true);
        assert_eq!(next.by_name()[name(Counter::Requests)], 14);
        assert_eq!(next.by_name()[name(Counter::Active)], 0);
        assert_eq!(next.latency.iter().sum::<u64>(), 2 * sums.latency.iter().sum::<u64>());
        // Other classes: begun anew.
        let mut other = Sums::default();
        other.resume(&Totals { latency: vec![1; 3], ..sums.totals() });
        assert_eq!(other.latency.iter().sum::<u64>(), 0);
    }

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
    fn json_can_be_read_back_also_when_it_says_more_or_less() {
        let mut status = status();
        status.more.insert("gateway".into(), serde_json::json!({ "scripts": 3 }));
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
        let less: Status = serde_json::from_str(r#"{"pid": 9, "unheard_of": true}"#).unwrap();
        assert_eq!((less.pid, less.more.len()), (9, 1));
    }

    #[test]
    fn the_table_shows_state_reasons_and_rates() {
        let (before, mut status) = (Status { counters: BTreeMap::new(), ..status() }, status());
        let certificate = serde_json::json!({
            "site": "default", "names": ["a.example", "b.example"], "key": "ECDSA P-256",
            "issuer": "CN=ca", "not_after": 86_400,
        });
        status.more.insert("certificates".into(), vec![certificate].into());
        let table = Table { status: &status, before: Some((&before, Duration::from_secs(2))) }.to_string();
        for expected in [
            "httpd 0.1.0 serving (pid 1), up 1h1m, generation 2\n",
            "last reload: failed, the generation before goes on\n    bad\n    worse\n",
            "    http://127.0.0.1:8080, 2 sockets, from activation\n",
            "    gen  worker  pid  core    state  up  restarts  connections  requests\n",
            "      2       0   77     -  serving  0s         0            0         0\n",
            "    requests                              15           7.5/s\n",
            "\nring: buffer-ring\n",
            "    default: a.example b.example; ECDSA P-256, by CN=ca, until 1970-01-02T00:00:00.000Z\n",
        ] {
            assert!(table.contains(expected), "{expected:?} is not in\n{table}");
        }
        assert!(!table.contains("cache_hits"));
    }
}
