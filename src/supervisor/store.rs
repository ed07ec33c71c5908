//! Listeners kept by the service manager over a restart (FDSTORE=1 of sd_notify(3)), so that who waits in their
//! queues is served by the next program instead of being reset.
//!
//! They come back as descriptors of socket activation, by the name they were given here: that of the address.
//! What is kept and no longer configured is taken out again, since nobody would ever accept from it.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use super::activation;
use super::listeners::Listeners;
use super::notify::Notify;
use crate::sys::pass::DESCRIPTORS_MAX;

/// What our names begin with; no socket unit would call its own so.
const OURS: &str = "httpd-listener-";

/// What the service manager keeps: how many descriptors by which name.
#[derive(Debug, Default)]
pub(super) struct Store(BTreeMap<String, usize>);

impl Store {
    /// What it kept since an earlier run, as the environment says.
    pub(super) fn from_environment() -> Self {
        let mut kept = BTreeMap::new();
        for name in activation::names().into_iter().filter(|name| is_ours(name)) {
            *kept.entry(name).or_default() += 1;
        }
        Self(kept)
    }

    /// Has it keep these and nothing else.
    pub(super) fn keep(&mut self, listeners: &Listeners, notify: &Notify) {
        let mut wanted = BTreeMap::new();
        for (address, fds) in listeners.lasting() {
            // A name is of printable ASCII without colons.
            let name = format!("{OURS}{}", address.to_string().replace(':', "_"));
            let kept = self.0.get(&name).copied().unwrap_or_default();
            if fds.len() > kept {
                // All of them: those that are there already are not kept twice.
                let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
                for some in fds.chunks(DESCRIPTORS_MAX) {
                    notify.store(&name, some);
                }
            }
            wanted.insert(name, fds.len());
        }
        for name in self.0.keys().filter(|name| !wanted.contains_key(*name)) {
            notify.forget(name);
        }
        self.0 = wanted;
    }
}

/// Whether a descriptor's name is one that was given here.
pub(super) fn is_ours(name: &str) -> bool {
    name.starts_with(OURS)
}
