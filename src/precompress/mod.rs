//! The **precompressor**: keeps compressed variants of the sites' files ready in the cache directory.

pub mod start;
