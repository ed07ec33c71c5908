//! A status as Prometheus reads it: its text format, version 0.0.4. Pure.
//!
//! Names follow its conventions: `httpd_` in front, base units (seconds, bytes) and `_total` behind what only
//! grows. A counter's name is made from its name in the status; where that would not be right it stands in
//! [`NAMES`], with labels where several counters are one metric.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use serde_json::Value;

use crate::observe::latency::{self, Histogram};
use crate::observe::names::{COUNTERS, Counter, Description, Kind, RING_FEATURES};
use crate::observe::status::Status;

/// Counters whose metric is named otherwise, and its labels.
const NAMES: &[(Counter, &str, &str)] = &[
    (Counter::Responses1xx, "responses_total", "class=\"1xx\""),
    (Counter::Responses2xx, "responses_total", "class=\"2xx\""),
    (Counter::Responses3xx, "responses_total", "class=\"3xx\""),
    (Counter::Responses4xx, "responses_total", "class=\"4xx\""),
    (Counter::Responses5xx, "responses_total", "class=\"5xx\""),
    (Counter::BytesReceived, "received_bytes_total", ""),
    (Counter::BytesSent, "sent_bytes_total", ""),
    (Counter::LogLinesLost, "access_log_lines_lost_total", ""),
    (Counter::CacheHits, "cache_lookups_total", "result=\"hit\""),
    (Counter::CacheMisses, "cache_lookups_total", "result=\"miss\""),
    (Counter::HandshakesFull, "tls_handshakes_total", "result=\"full\""),
    (Counter::HandshakesResumed, "tls_handshakes_total", "result=\"resumed\""),
    (Counter::HandshakesFailed, "tls_handshakes_total", "result=\"failed\""),
    (Counter::KernelTlsOn, "tls_kernel_sessions_total", ""),
    (Counter::KernelTlsRefused, "tls_kernel_refusals_total", ""),
];

/// What a metric says that is several counters.
const HELP: &[(&str, &str)] = &[
    ("responses_total", "Responses, by class of status."),
    (
        "cache_lookups_total",
        "Lookups answered from the cache (hit), and those that asked the file system (miss).",
    ),
    ("tls_handshakes_total", "TLS handshakes, by how they ended."),
];

/// States a worker is counted in, so that each is always there.
const STATES: [&str; 5] = ["waiting", "starting", "serving", "draining", "killed"];

/// All metrics.
pub fn render(status: &Status) -> String {
    let mut text = Text::default();
    text.server(status);
    text.workers(status);
    text.tls(status);
    text.features(status);
    text.gauge("cache_limit_bytes", "How much of bodies and heads may be in memory.", status.cache_memory);
    text.counters(status);
    text.latency(status);
    text.0
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn server(&mut self, status: &Status) {
        self.family("build_info", "gauge", "The version that runs.");
        self.sample("build_info", &label("version", &status.version), 1);
        self.gauge("start_time_seconds", "When the supervisor began, in seconds since 1970.", status.started);
        self.gauge(
            "generation",
            "The generation that serves: 1, and one more with each reload.",
            status.generation,
        );
        self.gauge("draining", "Whether the server stops.", u8::from(status.state == "stopping"));
        let reload = status.last_reload.as_ref();
        let succeeded = u8::from(reload.is_none_or(|reload| reload.succeeded));
        self.gauge("last_reload_successful", "Whether the last reload succeeded; 1 without any.", succeeded);
        let at = reload.map_or(status.started, |reload| reload.at);
        self.gauge("last_reload_timestamp_seconds", "When the last reload ended, or the server began.", at);
    }

    fn workers(&mut self, status: &Status) {
        self.family("workers", "gauge", "Worker processes of all generations, by state.");
        for state in STATES {
            let count = status.workers.iter().filter(|worker| worker.state == state).count();
            self.sample("workers", &label("state", state), count);
        }
        self.counter("worker_restarts_total", "Workers that died and were forked again.", status.restarts);
        let mut companions = BTreeMap::<&str, (usize, u64)>::new();
        for companion in &status.companions {
            let (running, restarts) = companions.entry(&companion.name).or_default();
            *running += usize::from(companion.state == "running");
            *restarts += u64::from(companion.restarts);
        }
        self.family("companions", "gauge", "Processes beside the workers that run, by what they are for.");
        for (name, (running, _)) in &companions {
            self.sample("companions", &label("name", name), running);
        }
        self.family("companion_restarts_total", "counter", "Companions that died and were forked again.");
        for (name, (_, restarts)) in &companions {
            self.sample("companion_restarts_total", &label("name", name), restarts);
        }
    }

    fn tls(&mut self, status: &Status) {
        let mut ends = BTreeMap::<String, u64>::new();
        for certificate in status.more.get("certificates").and_then(Value::as_array).into_iter().flatten() {
            let text = |name| certificate[name].as_str().unwrap_or_default();
            let name = certificate["names"][0].as_str().unwrap_or_default();
            let labels = [label("site", text("site")), label("name", name), label("key", text("key"))];
            let end = certificate["not_after"].as_u64().unwrap_or_default();
            // The same labels twice would make the whole text unreadable: the first to expire counts.
            let known = ends.entry(labels.join(",")).or_insert(end);
            *known = end.min(*known);
        }
        self.family("certificate_expiry_timestamp_seconds", "gauge", "When a certificate expires.");
        for (labels, end) in &ends {
            self.sample("certificate_expiry_timestamp_seconds", labels, end);
        }
        if let Some(used) = status.more.get("kernel_tls").and_then(|kernel| kernel["used"].as_bool()) {
            self.gauge("tls_kernel_available", "Whether the kernel encrypts large bodies.", u8::from(used));
        }
    }

    fn features(&mut self, status: &Status) {
        self.family("ring_feature", "gauge", "Whether the workers' rings have a feature of the kernel.");
        for feature in RING_FEATURES {
            let is_there = status.ring_features.iter().any(|known| known == feature);
            self.sample("ring_feature", &label("feature", feature), u8::from(is_there));
        }
    }

    fn counters(&mut self, status: &Status) {
        // All samples of a metric stand together, wherever its counters stand.
        let mut families: Vec<(String, Vec<(&Description, &str)>)> = Vec::new();
        for known in COUNTERS.iter().filter(|known| known.kind != Kind::Bits) {
            let (name, labels) = metric(known);
            match families.iter_mut().find(|(family, _)| *family == name) {
                Some((_, members)) => members.push((known, labels)),
                None => families.push((name, vec![(known, labels)])),
            }
        }
        for (name, members) in &families {
            let Some((first, _)) = members.first() else { continue };
            let help = HELP.iter().find(|(of, _)| of == name).map_or(first.help, |(_, help)| help);
            self.family(name, if first.kind == Kind::Gauge { "gauge" } else { "counter" }, help);
            for (known, labels) in members {
                match status.counter(known.counter) {
                    micros if known.kind == Kind::Time => self.sample(name, labels, seconds(micros)),
                    value => self.sample(name, labels, value),
                }
            }
        }
    }

    fn latency(&mut self, status: &Status) {
        const NAME: &str = "response_duration_seconds";
        let help = "From a request's complete head to its response's last byte, by class of status.";
        self.family(NAME, "histogram", help);
        let none = Histogram::default();
        for class in latency::CLASSES {
            let histogram = status.latency.get(class).unwrap_or(&none);
            let labels = label("class", class);
            for bucket in 0..=latency::BOUNDED {
                let bound =
                    latency::bound(bucket).map_or("+Inf".to_owned(), |bound| seconds(bound).to_string());
                let labels = format!("{labels},{}", label("le", &bound));
                self.sample(&format!("{NAME}_bucket"), &labels, histogram.at_most(bucket));
            }
            self.sample(&format!("{NAME}_sum"), &labels, seconds(histogram.sum));
            self.sample(&format!("{NAME}_count"), &labels, histogram.count);
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.sample(name, "", value);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP httpd_{name} {help}\n# TYPE httpd_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.0, "httpd_{name} {value}"),
            _ => writeln!(self.0, "httpd_{name}{{{labels}}} {value}"),
        };
    }
}

/// The metric a counter belongs to, and its labels there.
fn metric(known: &Description) -> (String, &'static str) {
    if let Some((_, name, labels)) = NAMES.iter().find(|(counter, ..)| *counter == known.counter) {
        return ((*name).to_owned(), labels);
    }
    let name = match known.kind {
        Kind::Gauge | Kind::Bits => known.name.to_owned(),
        Kind::Total => format!("{}_total", known.name),
        Kind::Time => format!("{}_seconds_total", known.name),
    };
    (name, "")
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// A label, with what would end its value escaped.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::names::Counters;
    use crate::observe::status::{Companion, Reload, Sums, Worker};
    use std::collections::{HashMap, HashSet};
    use std::time::Duration;

    fn status() -> Status {
        let counters = Counters::new().expect("a page");
        for (value, known) in (1..).zip(COUNTERS.iter().filter(|known| known.kind != Kind::Bits)) {
            counters.set(known.counter, value);
        }
        counters.set(Counter::RingFeatures, 0b1001);
        counters.add_latency(0, 3, Duration::from_micros(20));
        counters.add_latency(0, 1, Duration::from_secs(100));
        counters.add_latency(2, 1, Duration::from_millis(2));
        let mut sums = Sums::default();
        sums.add(&counters, false);
        let worker = |state: &str| Worker { state: state.into(), ..Worker::default() };
        let companion = |restarts| Companion {
            name: "spawner".into(),
            state: "running".into(),
            restarts,
            ..Companion::default()
        };
        let certificate = |site: &str, end: u64| serde_json::json!({"site": site, "names": ["a.example", "b.example"], "key": "RSA", "not_after": end});
        let mut status = Status {
            version: "0.1.0".into(),
            started: 1_700_000_000,
            state: "serving".into(),
            generation: 3,
            last_reload: Some(Reload { succeeded: false, at: 1_700_000_100, reason: None }),
            workers: vec![worker("serving"), worker("serving"), worker("draining")],
            companions: vec![companion(1), companion(2)],
            restarts: 4,
            counters: sums.by_name(),
            latency: sums.latency(),
            ring_features: sums.ring_features(),
            ..Status::default()
        };
        let certificates = [certificate("odd\"\\\nname", 7), certificate("s", 9), certificate("s", 8)];
        status.more.insert("certificates".into(), certificates.to_vec().into());
        status.more.insert("kernel_tls".into(), serde_json::json!({"used": true}));
        status
    }

    #[test]
    fn samples_are_as_expected() {
        let text = render(&status());
        for expected in [
            "# HELP httpd_build_info The version that runs.\n# TYPE httpd_build_info gauge\n\
             httpd_build_info{version=\"0.1.0\"} 1\n",
            "httpd_start_time_seconds 1700000000\n",
            "httpd_last_reload_successful 0\n",
            "httpd_last_reload_timestamp_seconds 1700000100\n",
            "httpd_workers{state=\"serving\"} 2\nhttpd_workers{state=\"draining\"} 1\n",
            "httpd_worker_restarts_total 4\n",
            "httpd_companions{name=\"spawner\"} 2\n",
            "httpd_companion_restarts_total{name=\"spawner\"} 3\n",
            "{site=\"odd\\\"\\\\\\nname\",name=\"a.example\",key=\"RSA\"} 7\n",
            "{site=\"s\",name=\"a.example\",key=\"RSA\"} 8\n",
            "httpd_ring_feature{feature=\"buffer-ring\"} 1\nhttpd_ring_feature{feature=\"no-iowait\"} 0\n",
            "httpd_connections_accepted_total 1\n",
            "# TYPE httpd_connections_active gauge\nhttpd_connections_active 2\n",
            "# HELP httpd_responses_total Responses, by class of status.\n# TYPE httpd_responses_total counter\n\
             httpd_responses_total{class=\"1xx\"} 6\nhttpd_responses_total{class=\"2xx\"} 7\n",
            "httpd_response_duration_seconds_bucket{class=\"2xx\",le=\"0.000016\"} 0\n\
             httpd_response_duration_seconds_bucket{class=\"2xx\",le=\"0.000024\"} 3\n",
            "{class=\"2xx\",le=\"67.108864\"} 3\n\
             httpd_response_duration_seconds_bucket{class=\"2xx\",le=\"+Inf\"} 4\n\
             httpd_response_duration_seconds_sum{class=\"2xx\"} 100.00006\n\
             httpd_response_duration_seconds_count{class=\"2xx\"} 4\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }

    /// The rules of the format and of its conventions, for every metric there is.
    #[test]
    fn every_metric_is_told_once_and_named_by_convention() {
        let text = render(&status());
        let (mut kinds, mut samples, mut current) = (HashMap::new(), HashSet::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a kind");
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
                current = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("help");
                assert!(help.ends_with('.') && help.len() > 10, "{name}: {help}");
            } else {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(series.starts_with(&current), "{line} among {current}");
                assert!(samples.insert(series.to_owned()), "{series} twice");
            }
        }
        for (name, kind) in kinds {
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.starts_with("httpd_") && name.chars().all(is_plain), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        }
    }

    /// The dashboard asks for nothing that is not there.
    #[test]
    fn the_dashboard_names_metrics_that_exist() {
        let text = render(&status());
        let dashboard = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/grafana/httpd.json"));
        let dashboard: Value = serde_json::from_str(dashboard).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
        let mut asked: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("a query")).collect();
        asked.push(dashboard["templating"]["list"][1]["query"]["query"].as_str().expect("a query"));
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = asked.iter().flat_map(|query| query.split(|c| !is_of_name(c)));
        let names: HashSet<&str> = words.filter(|word| word.starts_with("httpd_")).collect();
        assert!(names.len() > 15, "{names:?}");
        for name in names {
            let is_there =
                |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
            assert!(text.lines().any(is_there), "{name} is not told");
        }
        let labels =
            asked.iter().flat_map(|query| query.split(['{', ',']).filter(|part| part.contains("=\"")));
        for label in labels.map(|label| label.split('}').next().unwrap_or_default()) {
            assert!(text.contains(label.trim()), "{label} is nowhere");
        }
    }

    #[test]
    fn names_are_of_counters_and_times_are_seconds() {
        for (name, _) in HELP {
            assert!(NAMES.iter().any(|(_, metric, _)| metric == name), "{name}");
        }
        let time = Description { counter: Counter::Cut, kind: Kind::Time, name: "script", help: "" };
        assert_eq!(metric(&time).0, "script_seconds_total");
        assert_eq!(seconds(1_500_000).to_string(), "1.5");
    }
}
