//! What the program says of itself: diagnostics, access log lines, counters, status.

pub mod names;
