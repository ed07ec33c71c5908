//! RFC 9110: what HTTP means, whatever carries it. One idea a file, all pure.
//!
//! Nothing here knows of connections, files or the configuration, and nothing logs. Peers' bytes come
//! in as slices and are borrowed; what a peer does wrong is a small enum or simply ignored, whichever
//! the RFC asks for.

pub mod expect;
pub mod fields;
pub mod host;
pub mod method;
pub mod request;
pub mod status;
