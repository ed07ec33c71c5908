//! The process that runs modules, as the spawner sees it: [`host`] where the build has one, else nobody.

#[cfg(feature = "wcgi")]
mod host;
#[cfg(not(feature = "wcgi"))]
mod nobody;

#[cfg(feature = "wcgi")]
pub use host::Modules;
#[cfg(not(feature = "wcgi"))]
pub use nobody::Modules;

/// Whom an answer is for.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The worker's index.
    pub mailbox: usize,
    /// Its epoch.
    pub worker: u64,
    /// Its number for the request.
    pub id: u64,
}
