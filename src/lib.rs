//! The rooms of `httpd`, and what each may know.
//!
//! A **supervisor** reads the configuration, binds the listeners and forks one **worker** per core.
//! A worker owns one io_uring and many client connections; it fetches *facts* through the ring,
//! pure rooms decide, and what they decide is sent: look up, decide, send.
//!
//! ```text
//! main -> cli -> config, supervisor, tls, precompress, gateway, observe, sys
//! supervisor -> config, tls, observe, sys, and of worker, precompress, gateway and metrics what starts them
//! worker     -> ring, conn, files, gateway, http, tls, config, observe, sys
//! precompress -> files, http, config, observe, sys     metrics -> http1, http, observe, sys
//! conn       -> http1, files, gateway, tls, http, config, observe, and of ring and sys plain values
//! gateway    -> http, config, observe, sys
//! files      -> http, config, and of ring and sys plain values: time, facts, descriptors
//! tls        -> config, sys     observe -> sys     ring -> sys     config -> sys
//! http1      -> http            http, sys -> nothing of ours
//! ```
//!
//! # Glossary
//!
//! * **connection**: one client's TCP or unix stream; **session**: its TLS; **exchange**: one request
//!   and its response.
//! * **generation**: one set of workers, made from one reading of the configuration.
//! * **op**: something asked of the kernel; **completion**: its answer; **slot** and **reuse**: where
//!   a connection lives and the how-manieth one lives there, so that late completions are harmless.
//! * **runner**: who runs what answers a request, programs or modules, for the workers; **run**: one
//!   such answer, as the worker and its runner know it; **mailbox**: the connection between both.
//! * **event** / **action**: into / out of a machine.
//! * **facts**: what was looked up; **entry**: facts and ready-made answers, cached; **plan**: the
//!   decided answer; **representation**: one form (coding) of a file.
//! * **lease**: a receive buffer on loan from the ring.
//! * **outcome**: how an exchange or connection ended.

pub mod cli;
pub mod config;
pub mod conn;
pub mod files;
pub mod gateway;
pub mod http;
pub mod http1;
pub mod metrics;
pub mod observe;
pub mod precompress;
pub mod ring;
pub mod supervisor;
#[allow(unsafe_code)]
pub mod sys;
pub mod tls;
pub mod worker;
