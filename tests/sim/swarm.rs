//! Many runs by chance, each told by its seed. `HTTPD_SIM_SEED` runs one seed, `HTTPD_SIM_COUNT` so many
//! from 0 on, `HTTPD_SIM_STEPS` bounds the steps of a run.

use crate::run::{drawn, run};

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

#[test]
fn swarm() {
    // What panics on purpose is caught and told with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let steps_max = variable("HTTPD_SIM_STEPS").unwrap_or(200_000);
    let seeds = match variable("HTTPD_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("HTTPD_SIM_COUNT").unwrap_or(256),
    };
    let mut failures = Vec::new();
    let mut requests = 0;
    for seed in seeds.clone() {
        let report = run(drawn(seed, steps_max));
        requests += report.requests;
        if let Some(failure) = report.failure {
            let tail = if seeds.end - seeds.start == 1 { report.tail } else { String::new() };
            failures.push(format!("{tail}HTTPD_SIM_SEED={seed}: {failure}"));
            continue;
        }
        if seed % 8 == 0 {
            let again = run(drawn(seed, steps_max));
            if again.digest != report.digest {
                failures.push(format!("HTTPD_SIM_SEED={seed} does not repeat itself: {:?}, then {:?}", report.digest, again.digest));
            }
        }
    }
    let _ = std::panic::take_hook();
    let count = seeds.end - seeds.start;
    println!("{count} seeds, {requests} requests");
    assert!(failures.is_empty(), "{} of {count} seeds failed\n{}", failures.len(), failures.join("\n"));
}
