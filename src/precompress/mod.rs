//! The **precompressor**: keeps compressed variants of the sites' files ready in the cache directory, so that
//! every client gets the smallest form it accepts without anyone having run a tool. A process of its own, at
//! the lowest priority; [`command`] does the same once, with somebody watching.
//!
//! ```text
//! run, command -> pass -> walk                 which files there are
//!                    |  -> store                which variants there are
//!                    |  -> pool -> job          what is missing, made
//!                    |             |  -> codings
//!                    +- watch      +- drafts    published
//! ```
//!
//! It may be killed at any moment, and several of it may work in one cache: a variant appears by one rename,
//! under a name made of its source's facts.

mod codings;
pub mod command;
mod drafts;
mod job;
mod pass;
mod pool;
mod run;
pub mod start;
mod store;
mod walk;
mod watch;

use crate::config::{Config, Precompress};

pub use run::run;

/// Whether a configuration needs a precompressor.
pub fn is_wanted(config: &Config) -> bool {
    let cache = &config.cache;
    cache.dir.is_some() && cache.precompress != Precompress::Off && !cache.encodings.is_empty()
}
