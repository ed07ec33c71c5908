//! RFC 9110: what HTTP means, whatever carries it. One idea a file, all pure.

pub mod fields;
pub mod request;
