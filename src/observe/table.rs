//! A status as people like to read it: the table of `httpd status`. Pure.

use std::fmt::{self, Write as _};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;

use super::calendar::Moment;
use super::latency::Histogram;
use super::names::{COUNTERS, Counter, Kind, RING_EFFECTS, RING_FEATURES};
use super::status::{Companion, Listener, Reload, Status, Worker};

/// A status, with rates from an earlier one where there is one.
#[derive(Debug)]
pub struct Table<'a> {
    /// What to show.
    pub status: &'a Status,
    /// An earlier status of the same supervisor, and how long before.
    pub before: Option<(&'a Status, Duration)>,
    /// The time now, in seconds since 1970.
    pub now: u64,
}

/// Counters that are told in words; the others are listed where they are not zero.
const TOLD: &[Counter] = &[
    Counter::Accepted,
    Counter::Active,
    Counter::Requests,
    Counter::BytesReceived,
    Counter::BytesSent,
    Counter::Responses1xx,
    Counter::Responses2xx,
    Counter::Responses3xx,
    Counter::Responses4xx,
    Counter::Responses5xx,
    Counter::CacheHits,
    Counter::CacheMisses,
    Counter::CacheEntries,
    Counter::CacheBytes,
    Counter::PrecompressRunning,
    Counter::PrecompressPasses,
    Counter::PrecompressSources,
    Counter::PrecompressPending,
];

/// What of `more` is told in words.
const TOLD_MORE: &[&str] = &["certificates", "kernel_tls", "ticket_key_since"];

impl fmt::Display for Table<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(out)?;
        self.listeners(out)?;
        self.workers(out)?;
        self.companions(out)?;
        self.traffic(out)?;
        self.cache(out)?;
        self.others(out)?;
        self.kernel(out)?;
        self.certificates(out)?;
        self.more(out)
    }
}

impl Table<'_> {
    fn head(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { version, state, pid, uptime, generation, .. } = self.status;
        writeln!(out, "httpd {version} {state} (pid {pid}), up {}, generation {generation}", Span(*uptime))?;
        match &self.status.last_reload {
            None => Ok(()),
            Some(Reload { succeeded: true, at, .. }) => {
                writeln!(out, "last reload: {}, succeeded", self.ago(*at))
            }
            Some(Reload { reason, at, .. }) => {
                writeln!(out, "last reload: {}, failed, the generation before goes on", self.ago(*at))?;
                let mut lines = reason.iter().flat_map(|reason| reason.lines());
                lines.try_for_each(|line| writeln!(out, "    {line}"))
            }
        }
    }

    fn listeners(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "\nlisteners")?;
        for Listener { url, sockets, origin, .. } in &self.status.listeners {
            write!(out, "    {url}, {sockets} socket{}", if *sockets == 1 { "" } else { "s" })?;
            match origin.as_str() {
                "httpd" => writeln!(out)?,
                other => writeln!(out, ", from {other}")?,
            }
        }
        Ok(())
    }

    fn workers(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "gen",
            "worker",
            "pid",
            "core",
            "state",
            "up",
            "restarts",
            "connections",
            "requests",
            "requests/s",
            "sent/s",
        ];
        let mut rows = vec![heads.map(str::to_owned)];
        rows.extend(self.status.workers.iter().map(|worker| {
            let same = |other: &&Worker| other.pid == worker.pid && worker.pid.is_some();
            let before = self.before.and_then(|(before, _)| before.workers.iter().find(same));
            let gained = |value: fn(&Worker) -> u64| {
                before.and_then(|before| self.per_second(value(before), value(worker)))
            };
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
                gained(|worker| worker.requests).map_or("-".to_owned(), |rate| format!("{rate:.1}")),
                gained(|worker| worker.bytes_sent).map_or("-".to_owned(), |rate| Bytes(rate).to_string()),
            ]
        }));
        writeln!(out, "\nworkers")?;
        columns(out, &rows)
    }

    fn companions(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.status.companions.is_empty() {
            return Ok(());
        }
        let heads = ["gen", "beside them", "pid", "state", "up", "restarts"];
        let mut rows = vec![heads.map(str::to_owned)];
        rows.extend(self.status.companions.iter().map(|companion| {
            let Companion { name, generation, pid, state, uptime, restarts } = companion;
            [
                generation.to_string(),
                name.clone(),
                optional(*pid),
                state.clone(),
                Span(*uptime).to_string(),
                restarts.to_string(),
            ]
        }));
        writeln!(out)?;
        columns(out, &rows)
    }

    fn traffic(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |counter| self.status.counter(counter);
        let rate = |counter, in_bytes: bool| match self.rate(counter) {
            Some(rate) if in_bytes => format!("{}/s", Bytes(rate)),
            Some(rate) => format!("{rate:.1}/s"),
            None => String::new(),
        };
        writeln!(out, "\ntraffic")?;
        let open = format!("{} open, {} accepted", count(Counter::Active), count(Counter::Accepted));
        let rows = [
            ("connections", open, rate(Counter::Accepted, false)),
            ("requests", count(Counter::Requests).to_string(), rate(Counter::Requests, false)),
            (
                "received",
                Bytes(count(Counter::BytesReceived) as f64).to_string(),
                rate(Counter::BytesReceived, true),
            ),
            ("sent", Bytes(count(Counter::BytesSent) as f64).to_string(), rate(Counter::BytesSent, true)),
        ];
        for (name, value, rate) in rows {
            writeln!(out, "{}", format!("    {name:<12}{value:>26}{rate:>18}").trim_end())?;
        }
        write!(out, "    {:<12}", "responses")?;
        for (class, counter) in [
            ("2xx", Counter::Responses2xx),
            ("3xx", Counter::Responses3xx),
            ("4xx", Counter::Responses4xx),
            ("5xx", Counter::Responses5xx),
        ] {
            write!(out, "  {class} {}", count(counter))?;
        }
        writeln!(out)?;
        self.latency(out)
    }

    /// How long responses take: between the two looks, or where there were none, since the beginning.
    fn latency(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (class, all) in self.status.latency.iter().filter(|(_, all)| all.count > 0) {
            let before = self.before.and_then(|(before, _)| before.latency.get(class));
            let now = before.map(|before| all.since(before)).filter(|now| now.count > 0);
            let (histogram, when) = match &now {
                Some(now) => (now, ""),
                None => (all, ", since the start"),
            };
            writeln!(
                out,
                "    {:<12}  {class} half within {}, 99 % within {}{when}",
                "took",
                Quantile(histogram, 500),
                Quantile(histogram, 990)
            )?;
        }
        Ok(())
    }

    fn cache(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status;
        let count = |counter| status.counter(counter);
        writeln!(out, "\ncache")?;
        let (hits, misses) = (count(Counter::CacheHits), count(Counter::CacheMisses));
        write!(out, "    memory        {} entries, ", count(Counter::CacheEntries))?;
        write!(out, "{}", Bytes(count(Counter::CacheBytes) as f64))?;
        if status.cache_memory > 0 {
            write!(out, " of {}", Bytes(status.cache_memory as f64))?;
        }
        if let Some(share) = share(hits, misses) {
            write!(out, "; hits {share}")?;
        }
        let gained =
            |counter| self.before.map(|(before, _)| count(counter).saturating_sub(before.counter(counter)));
        if let (Some(hits), Some(misses)) = (gained(Counter::CacheHits), gained(Counter::CacheMisses))
            && let Some(share) = share(hits, misses)
        {
            write!(out, ", now {share}")?;
        }
        writeln!(out)?;
        self.precompression(out)
    }

    fn precompression(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |name| self.status.counters.get(name).copied().unwrap_or_default();
        if !self.status.companions.iter().any(|companion| companion.name == "precompressor") {
            return Ok(());
        }
        let (files, pending) = (count("precompress_files"), count("precompress_pending"));
        write!(out, "    compressed    ")?;
        match (count("precompress_running"), count("precompress_passes")) {
            (1.., _) if files > 0 => {
                let done = files.saturating_sub(pending);
                writeln!(out, "{done} of {files} files, {} %", done * 100 / files)
            }
            (1.., _) => writeln!(out, "looking for files"),
            (0, 0) => writeln!(out, "not looked for yet"),
            (0, _) => writeln!(out, "all of {files} files"),
        }
    }

    /// What happened beside.
    fn others(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = "\nbesides\n";
        for known in
            COUNTERS.iter().filter(|known| known.kind != Kind::Bits && !TOLD.contains(&known.counter))
        {
            let value = self.status.counter(known.counter);
            if value == 0 {
                continue;
            }
            write!(out, "{head}    {:<24}{value:>14}", known.name)?;
            head = "";
            match self.rate(known.counter).filter(|_| known.kind == Kind::Total) {
                Some(rate) => writeln!(out, "{rate:>16.1}/s")?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }

    fn kernel(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let there = &self.status.ring_features;
        if there.is_empty() && !self.status.more.contains_key("kernel_tls") {
            return Ok(());
        }
        writeln!(out, "\nkernel")?;
        if !there.is_empty() {
            writeln!(out, "    ring          {}", there.join(", "))?;
            for (name, effect) in RING_FEATURES.iter().zip(RING_EFFECTS) {
                if !there.iter().any(|known| known == name) {
                    writeln!(out, "    without       {name}: {effect}")?;
                }
            }
        }
        let Some(kernel) = self.status.more.get("kernel_tls") else { return Ok(()) };
        let used = if kernel["used"] == true { "used" } else { "not used" };
        writeln!(out, "    kernel TLS    {used}: {}", kernel["probe"].as_str().unwrap_or("-"))
    }

    fn certificates(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(certificates) = self.status.more.get("certificates").and_then(Value::as_array) else {
            return Ok(());
        };
        writeln!(out, "\ncertificates")?;
        for certificate in certificates {
            let text = |name| certificate[name].as_str().unwrap_or("-");
            let names = certificate["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
            write!(out, "    {}: {}", text("site"), names.collect::<Vec<_>>().join(" "))?;
            write!(out, "; {}, by {}", text("key"), text("issuer"))?;
            if let Some(end) = certificate["not_after"].as_u64() {
                write!(out, ", until {}", date(end))?;
                match end.checked_sub(self.now) {
                    Some(left) => match left / 86_400 {
                        1 => write!(out, " (1 day)")?,
                        days => write!(out, " ({days} days)")?,
                    },
                    None => write!(out, " (EXPIRED)")?,
                }
            }
            writeln!(out)?;
        }
        match self.status.more.get("ticket_key_since").and_then(Value::as_u64) {
            Some(since) => writeln!(out, "    ticket key since {}", self.ago(since)),
            None => Ok(()),
        }
    }

    /// What is not known here: other versions may tell more.
    fn more(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.status.more.iter().filter(|(name, _)| !TOLD_MORE.contains(&name.as_str())) {
            match value {
                Value::Object(members) => {
                    write!(out, "{name}:")?;
                    members.iter().try_for_each(|(name, value)| write!(out, " {name} {value}"))?;
                    writeln!(out)?;
                }
                Value::String(text) => writeln!(out, "{name}: {text}")?,
                value => writeln!(out, "{name}: {value}")?,
            }
        }
        Ok(())
    }

    fn rate(&self, counter: Counter) -> Option<f64> {
        let (before, _) = self.before?;
        self.per_second(before.counter(counter), self.status.counter(counter))
    }

    /// What was gained in a second between the two looks. A worker that died takes nothing away.
    fn per_second(&self, before: u64, now: u64) -> Option<f64> {
        let (_, ago) = self.before?;
        (!ago.is_zero()).then(|| now.saturating_sub(before) as f64 / ago.as_secs_f64())
    }

    fn ago(&self, at: u64) -> String {
        format!("{} ({} ago)", date(at), Span(self.now.saturating_sub(at)))
    }
}

/// Rows of one width, cells to the right.
fn columns<const N: usize>(out: &mut fmt::Formatter<'_>, rows: &[[String; N]]) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        let mut line = String::from("   ");
        for (cell, width) in row.iter().zip(widths) {
            write!(line, " {cell:>width$} ")?;
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn optional(value: Option<u32>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// How many of both are the first, in percent; `None` where there are none.
fn share(of: u64, others: u64) -> Option<String> {
    let all = of.saturating_add(others);
    (all > 0).then(|| format!("{:.1} %", of as f64 * 100.0 / all as f64))
}

/// A moment to the second.
fn date(at: u64) -> String {
    let text = UNIX_EPOCH.checked_add(Duration::from_secs(at)).map(|at| Moment::from(at).to_string());
    text.map_or_else(|| "-".to_owned(), |text| text.replace(".000Z", "Z"))
}

/// A bound that so many of a thousand responses kept.
struct Quantile<'a>(&'a Histogram, u64);

impl fmt::Display for Quantile<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.quantile(self.1).map(|bound| bound.as_micros()) {
            None => out.write_str("more than a minute"),
            Some(micros @ ..10_000) => write!(out, "{micros} us"),
            Some(micros @ ..10_000_000) => write!(out, "{} ms", micros / 1000),
            Some(micros) => write!(out, "{} s", micros / 1_000_000),
        }
    }
}

/// A number of bytes in the largest unit that leaves a digit before the point.
struct Bytes(f64);

impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut unit) = (self.0, "B");
        for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
            if value < 1024.0 {
                break;
            }
            (value, unit) = (value / 1024.0, next);
        }
        if unit == "B" { write!(out, "{value:.0} B") } else { write!(out, "{value:.1} {unit}") }
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
#[path = "table_tests.rs"]
mod tests;
