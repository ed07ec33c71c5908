//! The table against what it must look like, to the letter.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::observe::names::Counters;
use crate::observe::status::Sums;

/// A server with a bit of everything, after so many requests.
fn status(requests: u64) -> Status {
    let counters = Counters::new().expect("a page");
    counters.add(Counter::Requests, requests);
    counters.add(Counter::Responses2xx, requests - 1);
    counters.add(Counter::Responses4xx, 1);
    counters.add(Counter::Accepted, requests / 2);
    counters.set(Counter::Active, 3);
    counters.add(Counter::BytesReceived, requests * 80);
    counters.add(Counter::BytesSent, requests * 5000);
    counters.add(Counter::CacheHits, requests - 10);
    counters.add(Counter::CacheMisses, 10);
    counters.set(Counter::CacheEntries, 4);
    counters.set(Counter::CacheBytes, 3 << 20);
    counters.add(Counter::HandshakesFull, 2);
    counters.set(Counter::RingFeatures, 0b1101);
    for _ in 1..requests {
        counters.add_latency(0, 1, Duration::from_micros(20));
    }
    counters.add_latency(2, 1, Duration::from_millis(30));
    let mut sums = Sums::default();
    sums.add(&counters, false);
    let worker = |index: u32, pid, state: &str| Worker {
        generation: 2,
        index,
        pid,
        core: Some(index),
        state: state.into(),
        uptime: 95,
        restarts: index,
        connections: 3,
        requests: requests / 2,
        bytes_sent: requests * 2500,
    };
    let certificate = |site: &str, not_after: u64| {
        json!({
            "site": site, "names": ["a.example", "b.example"], "key": "ECDSA P-256", "issuer": "CN=ca",
            "not_after": not_after,
        })
    };
    let more = [
        ("certificates", json!([certificate("a", NOW + 90_000), certificate("b", NOW - 1)])),
        ("kernel_tls", json!({ "used": true, "probe": "TLS 1.3 AES-GCM" })),
        ("ticket_key_since", json!(NOW - 3600)),
        ("modules", json!({ "loaded": 3 })),
    ];
    Status {
        version: "0.1.0".into(),
        pid: 77,
        uptime: 3700,
        started: NOW - 3700,
        state: "serving".into(),
        generation: 2,
        last_reload: Some(Reload { succeeded: true, at: NOW - 95, reason: None }),
        listeners: vec![
            Listener {
                url: "http://127.0.0.1:8080".into(),
                sockets: 2,
                origin: "httpd".into(),
                ..Listener::default()
            },
            Listener {
                url: "unix:/run/a".into(),
                sockets: 1,
                origin: "activation".into(),
                ..Listener::default()
            },
        ],
        workers: vec![worker(0, Some(100), "serving"), worker(1, None, "waiting")],
        companions: vec![Companion {
            name: "precompressor".into(),
            generation: 2,
            pid: Some(102),
            state: "running".into(),
            uptime: 95,
            restarts: 0,
        }],
        counters: sums.by_name(),
        latency: sums.latency(),
        cache_memory: 256 << 20,
        ring_features: sums.ring_features(),
        more: more.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Status::default()
    }
}

/// 2027-01-15T08:00:00Z.
const NOW: u64 = 1_800_000_000;

#[test]
fn two_looks_give_the_whole_table() {
    let (before, status) = (status(100), status(1100));
    let table = Table { status: &status, before: Some((&before, Duration::from_secs(2))), now: NOW };
    assert_golden("tests/golden/status/two_looks.txt", &table.to_string());
}

#[test]
fn one_look_gives_no_rates() {
    let mut status = status(1100);
    status.state = "stopping".into();
    status.last_reload = Some(Reload { succeeded: false, at: NOW - 5, reason: Some("bad\nworse".into()) });
    status.more.clear();
    status.counters.insert("precompress_running".into(), 1);
    status.counters.insert("precompress_files".into(), 1200);
    status.counters.insert("precompress_pending".into(), 300);
    let table = Table { status: &status, before: None, now: NOW };
    assert_golden("tests/golden/status/one_look.txt", &table.to_string());
}

/// What an older or a failing server says is shown as far as it goes.
#[test]
fn next_to_nothing_is_shown_too() {
    let status = Status { pid: 1, counters: BTreeMap::new(), ..Status::default() };
    let table = Table { status: &status, before: Some((&status, Duration::ZERO)), now: 0 };
    assert!(table.to_string().contains("requests"), "{table}");
}

#[test]
fn numbers_read_well() {
    let text = |bytes| Bytes(bytes).to_string();
    assert_eq!(
        [0.0, 1023.0, 1024.0, 1.5e6, 3e15].map(text),
        ["0 B", "1023 B", "1.0 KiB", "1.4 MiB", "2.7 PiB"]
    );
    let text = |seconds| Span(seconds).to_string();
    assert_eq!([59, 61, 3700, 90_000].map(text), ["59s", "1m1s", "1h1m", "1d1h"]);
    assert_eq!((share(1, 0), share(0, 0)), (Some("100.0 %".into()), None));
    assert_eq!(date(u64::MAX), "-");
}

/// `HTTPD_GOLDEN=write` writes it anew: read the difference.
fn assert_golden(path: &str, found: &str) {
    if std::env::var("HTTPD_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(path, found).expect("the golden file can be written");
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, expected, "{path}:\n{found}");
}
