//! The real worker in a world made of memory: virtual time, clients that check every byte, and
//! mishaps from a seed. A failure prints the seed that brings it back.

mod checks;
mod clients;
mod fake_ring;
mod faults;
mod net;
mod ops;
mod pipes;
mod programs;
mod reader;
#[path = "../tls_support/records.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod records;
mod requests;
mod run;
mod scenarios;
mod scripts;
mod site;
mod swarm;
mod tls;
mod tree;
mod variants;
mod world;
