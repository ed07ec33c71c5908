//! What a connection is given to work with while it handles an event.

use std::rc::Rc;

use super::action::Action;
use super::buffers::Buffers;
use super::program::Spooled;
use crate::config::{Config, Limits, Mount, Timeouts};
use crate::files::entry::Entry;
use crate::files::{Files, Question};
use crate::http1::head::HeadLimits;
use crate::observe::batch::Batch;
use crate::observe::names::Counters;
use crate::ring::Clock;

/// What all connections of a worker share, lent for one event.
pub struct Scope<'a> {
    /// The files and what is known of them.
    pub files: &'a mut Files,
    /// What the operator set.
    pub settings: &'a Settings,
    /// The time of this turn.
    pub clock: Clock,
    /// The fields every response begins with: Date and Server, ready-made.
    pub common: &'a [u8],
    /// Memory for what was decrypted.
    pub plain: &'a mut Vec<u8>,
    /// Memory for what is sent.
    pub buffers: &'a mut Buffers,
    /// Lines about what was answered.
    pub log: &'a mut Batch,
    /// Numbers about what was answered.
    pub counters: &'a Counters,
    /// What was found for the exchange being answered.
    pub found: Vec<(Question, Rc<Entry>)>,
    /// What is to be done.
    pub actions: &'a mut Vec<Action>,
}

/// The part of the configuration that connections need.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Bounds on requests.
    pub limits: Limits,
    /// Bounds on request heads.
    pub head_limits: HeadLimits,
    /// Whether exchanges are logged.
    pub access_log: bool,
    /// The programs of each site; empty where no site has any.
    pub programs: Vec<SitePrograms>,
    /// What is kept of request bodies.
    pub spooled: Spooled,
    /// With at least so many bytes of files to send, the kernel takes over the encryption.
    pub kernel_tls_min: u64,
}

/// What programs of a site are told, and where they are mounted.
#[derive(Clone, Debug)]
pub struct SitePrograms {
    /// Its first exact name.
    pub name: Option<Vec<u8>>,
    /// Its mounts, in the order of the configuration.
    pub mounts: Vec<Mount>,
}

/// The kernel encrypts from the page cache what would otherwise be read, sealed and copied to it. Counted in
/// instructions on 6.12 (`tests/emulation/threshold`), 64 KiB of a file cost the kernel 1.16 of what they cost us,
/// 256 KiB 1.05, 4 MiB 0.99; passes over memory, which it saves, cost more than their instructions. Bodies in memory
/// stay with us: for those it needs 1.2 to 1.3 of our instructions at any size, since they are copied to it either way.
pub const KERNEL_TLS_MIN: u64 = 1024 * 1024;

impl Settings {
    /// What connections need of `config`.
    pub fn of(config: &Config, access_log: bool, kernel_tls_min: u64) -> Self {
        Self {
            timeouts: config.timeouts,
            limits: config.limits,
            head_limits: HeadLimits {
                bytes: config.limits.head as usize,
                lenient_line_ends: config.limits.lenient_line_ends,
            },
            access_log,
            programs: programs(config),
            spooled: Spooled::default(),
            kernel_tls_min,
        }
    }
}

fn programs(config: &Config) -> Vec<SitePrograms> {
    if config.sites.iter().all(|site| site.mounts.is_empty()) {
        return Vec::new();
    }
    let of = |site: &crate::config::Site| SitePrograms {
        name: site.hosts.iter().find(|host| !host.starts_with('*')).map(|host| host.clone().into_bytes()),
        mounts: site.mounts.clone(),
    };
    config.sites.iter().map(of).collect()
}
