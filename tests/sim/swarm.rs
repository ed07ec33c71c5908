//! Many runs by chance, each told by its seed. `HTTPD_SIM_SEED` runs one seed, `HTTPD_SIM_COUNT` so many
//! from 0 on, `HTTPD_SIM_STEPS` bounds the steps of a run.

use std::collections::BTreeMap;

use httpd::observe::names::{COUNTERS, Counter};

use crate::run::{Report, drawn, run};

/// Enough to come by every rare branch.
const COUNT: u64 = 256;
const STEPS: u64 = 200_000;
/// So many seeds are run twice.
const REPEATED: u64 = 8;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

#[test]
fn swarm() {
    let steps_max = variable("HTTPD_SIM_STEPS").unwrap_or(STEPS);
    let seeds = match variable("HTTPD_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("HTTPD_SIM_COUNT").unwrap_or(COUNT),
    };
    let alone = seeds.end - seeds.start == 1;
    let mut failures = Vec::new();
    let mut totals = BTreeMap::new();
    for seed in seeds.clone() {
        let report = run(drawn(seed, steps_max));
        add_up(&mut totals, &report);
        if let Some(failure) = &report.failure {
            let tail = if alone { report.tail() } else { String::new() };
            failures.push(format!("{tail}HTTPD_SIM_SEED={seed}: {failure}"));
        } else if alone || seed.is_multiple_of(REPEATED) {
            let again = run(drawn(seed, steps_max)).digest();
            if again != report.digest() {
                failures.push(format!("HTTPD_SIM_SEED={seed}: {:?}, then {again:?}", report.digest()));
            }
        }
    }
    println!("{totals:?}");
    assert!(failures.is_empty(), "{} failed\n{}", failures.len(), failures.join("\n"));
    if seeds.end - seeds.start >= COUNT {
        reaches_the_rare(&totals);
    }
}

fn add_up(totals: &mut BTreeMap<&'static str, u64>, report: &Report) {
    for description in COUNTERS {
        *totals.entry(description.name).or_default() += report.counters.get(description.counter);
    }
}

/// A swarm that never comes by a branch does not test it.
fn reaches_the_rare(totals: &BTreeMap<&'static str, u64>) {
    use Counter::{
        AcceptPaused, CacheEvicted, CacheHits, CacheMisses, Coded, Cut, HandshakesFull, HandshakesResumed,
        KernelTlsOn, KernelTlsRefused, LeasesStarved, LookupsAsync, ProgramsAsked, ProgramsFailed,
        ProgramsTurnedAway, Responses1xx, Responses5xx, TimedOut,
    };
    let rare = [
        AcceptPaused,
        CacheEvicted,
        CacheHits,
        CacheMisses,
        Coded,
        Cut,
        HandshakesFull,
        HandshakesResumed,
        KernelTlsOn,
        KernelTlsRefused,
        LeasesStarved,
        LookupsAsync,
        ProgramsAsked,
        ProgramsFailed,
        ProgramsTurnedAway,
        Responses1xx,
        Responses5xx,
        TimedOut,
    ];
    for description in COUNTERS.iter().filter(|description| rare.contains(&description.counter)) {
        assert!(totals[description.name] > 0, "{} stayed 0 in {totals:?}", description.name);
    }
}
