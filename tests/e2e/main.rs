//! The real binary over real sockets.

mod kit;
mod metrics;
mod processes;
mod programs;
mod serving;
mod status;
mod tls;
mod variants;
mod wire;
