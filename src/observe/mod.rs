//! What the program says of itself: diagnostics, access log lines, counters, status.

pub mod access_log;
pub mod batch;
pub mod calendar;
pub mod health;
pub mod latency;
pub mod log;
pub mod names;
pub mod status;
pub mod table;
