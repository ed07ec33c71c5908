//! What the operator is told of the sandbox: what this kernel lacks, and what is open wider than it looks.

use crate::config::{Config, Symlinks};
use crate::sys::sandbox::{self, Lack};

/// One line for each layer that is left out here.
pub(super) fn tell_lacks() {
    for Lack { feature, effect } in sandbox::lacking() {
        tracing::warn!("this kernel has no {feature}: {effect}");
    }
}

/// What workers of a configuration may read beyond the roots as such.
pub(super) fn tell_readable(config: &Config) {
    for site in &config.sites {
        let (root, line) = (site.root.display(), site.line);
        if site.symlinks == Symlinks::Anywhere {
            tracing::warn!(
                "the site of line {line} follows symlinks anywhere: workers may read every file their user may"
            );
        } else if let Some(neighbours) = sandbox::neighbours(&site.root) {
            tracing::info!(
                "{root} is reached by a symlink: workers may read all of {}",
                neighbours.display()
            );
        }
    }
}
