//! What the supervisor shows of itself.

use super::machine::{Role, WorkerId};
use super::{Supervisor, listeners};
use crate::config::{Config, KernelTls, Site};
use crate::observe::names::{Counter, RING_EFFECTS, RING_FEATURES};
use crate::observe::status::{Status, Sums, Worker};
use crate::sys::sandbox;
use crate::tls::Endpoint;

/// How many sites the first lines name.
const SITES_NAMED: usize = 8;

/// A site in a few words.
fn named(site: &Site) -> String {
    let hosts = if site.hosts.is_empty() { "all other hosts".to_owned() } else { site.hosts.join(" ") };
    format!("{hosts} from {}", site.root.display())
}

impl Supervisor {
    pub(super) fn status(&self) -> Status {
        let sums = self.sums();
        let current = self.machine.current();
        let config = self.current_config();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime: self.began.elapsed().as_secs(),
            started: self.started,
            state: self.state().to_owned(),
            generation: current.map(|generation| generation.id).unwrap_or_default(),
            last_reload: self.last_reload.clone(),
            listeners: config.as_ref().map(|config| self.listeners.status(config)).unwrap_or_default(),
            workers: self.workers(),
            companions: self.companions_status(),
            restarts: self.machine.restarts(),
            counters: sums.by_name(),
            latency: sums.latency(),
            cache_memory: config.as_ref().map(|config| config.cache.memory).unwrap_or_default(),
            rates: None,
            ring_features: sums.ring_features(),
            more: self.secure.status(self.endpoint()).into_iter().collect(),
        }
    }

    /// What all processes have counted, those that are gone included.
    pub(super) fn sums(&self) -> Sums {
        let mut sums = self.gone.clone();
        for process in self.processes.values().chain(self.attending.values()) {
            sums.add(&process.counters, false);
        }
        sums
    }

    pub(super) fn endpoint(&self) -> Option<&Endpoint> {
        let current = self.machine.current()?;
        self.generations.get(&current.id)?.tls.endpoint.as_ref()
    }

    pub(super) fn serving_line(&self, config: &Config) -> String {
        let listeners = self.listeners.status(config);
        let urls: Vec<&str> = listeners.iter().map(|listener| listener.url.as_str()).collect();
        let workers = config.server.workers;
        format!(
            "httpd {} serving {} with {workers} worker{} (pid {})",
            env!("CARGO_PKG_VERSION"),
            urls.join(", "),
            if workers == 1 { "" } else { "s" },
            std::process::id()
        )
    }

    /// What is worth knowing of a server that has begun: what it is made of, and what it goes without.
    pub(super) fn introduction(&self, config: &Config) -> Vec<String> {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let user = config.server.user.as_deref().map(|user| format!(", workers run as {user}"));
        let mut lines = vec![format!(
            "httpd {} on Linux {}{}",
            env!("CARGO_PKG_VERSION"),
            kernel.trim_end(),
            user.unwrap_or_default()
        )];
        let mut sites: Vec<String> = config.sites.iter().take(SITES_NAMED).map(named).collect();
        if let Some(more @ 1..) = config.sites.len().checked_sub(SITES_NAMED) {
            sites.push(format!("{more} more"));
        }
        lines.push(format!("sites: {}", sites.join("; ")));
        if let Some(address) = &config.metrics {
            lines.push(format!("metrics: {}", listeners::url(address, false)));
        }
        let features = self.status().ring_features;
        let lacking = sandbox::lacking();
        let mut used = vec![format!("ring with {}", features.join(", "))];
        used.push(if lacking.is_empty() { "sandbox" } else { "sandbox in part" }.to_owned());
        let without_tls =
            self.secure.kernel().filter(|tls| !(tls.usable && config.tls.kernel != KernelTls::Off));
        if self.secure.kernel().is_some() && without_tls.is_none() {
            used.push("TLS for large bodies".to_owned());
        }
        lines.push(format!("of the kernel: {}", used.join("; ")));
        let ring = RING_FEATURES.iter().zip(RING_EFFECTS);
        let ring = ring.filter(|(name, _)| !features.iter().any(|there| there == *name));
        lines.extend(ring.map(|(name, effect)| format!("without {name}: {effect}")));
        lines.extend(lacking.iter().map(|lack| format!("without {}: {}", lack.feature, lack.effect)));
        let effect = "large bodies over https are encrypted by the workers";
        lines.extend(without_tls.map(|tls| format!("without kernel TLS: {effect}; {}", tls.text)));
        lines
    }

    fn state(&self) -> &'static str {
        let is_coming = self.machine.generations().iter().any(|generation| generation.role == Role::Coming);
        match (self.machine.is_stopping(), self.machine.current().is_some(), is_coming) {
            (true, ..) => "stopping",
            (_, false, _) => "starting",
            (_, true, true) => "reloading",
            (_, true, false) => "serving",
        }
    }

    fn workers(&self) -> Vec<Worker> {
        let mut workers = Vec::new();
        for generation in self.machine.generations() {
            for (index, worker) in (0..).zip(&generation.workers) {
                let process = self.processes.get(&WorkerId { generation: generation.id, index });
                let count =
                    |counter| process.map(|process| process.counters.get(counter)).unwrap_or_default();
                workers.push(Worker {
                    generation: generation.id,
                    index,
                    pid: process.map(|process| process.pid.as_raw_nonzero().get().unsigned_abs()),
                    state: worker.state.name().to_owned(),
                    uptime: process.map(|_| worker.lives.born.elapsed().as_secs()).unwrap_or_default(),
                    restarts: worker.lives.restarts,
                    core: process.and_then(|process| process.core),
                    connections: count(Counter::Active),
                    requests: count(Counter::Requests),
                    bytes_sent: count(Counter::BytesSent),
                });
            }
        }
        workers
    }
}
