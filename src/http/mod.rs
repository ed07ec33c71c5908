//! RFC 9110: what HTTP means, whatever carries it. One idea a file, all pure.
//!
//! Nothing here knows of connections, files or the configuration, and nothing logs. Peers' bytes come
//! in as slices and are borrowed; what a peer does wrong is a small enum or simply ignored, whichever
//! the RFC asks for.

pub mod accept;
pub mod authorization;
pub mod conditions;
pub mod date;
pub mod etag;
pub mod expect;
pub mod fields;
pub mod forwarded;
pub mod host;
pub mod media_types;
pub mod method;
pub mod multipart;
pub mod range;
pub mod request;
pub mod status;
pub mod target;
