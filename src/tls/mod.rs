//! TLS: certificates, sessions, tickets, and the hand-over of sending to the kernel.
//!
//! The supervisor builds an [`Endpoint`]; a worker makes a [`Session`] of it per connection, and
//! passes bytes through it. Nothing here touches a socket. `handshake` alone sees rustls's connection,
//! which leaves when it is complete: `records` protects what follows, until the kernel takes over
//! sending with what `kernel` prepares.

mod certificates;
mod control;
mod endpoint;
mod handshake;
mod kernel;
mod probe;
mod records;
mod resolver;
mod session;
mod staple;
mod tickets;

pub use certificates::{CertificateSummary, EXPIRY_WARNING, Problem};
pub use control::{ALERT, Alert, Failure};
pub use endpoint::{Endpoint, read_ticket_keys};
pub use handshake::{Established, HANDSHAKE_BYTES_MAX};
pub use kernel::CryptoInfo;
pub use probe::{KernelSupport, probe};
pub use records::{CONTENT_MAX, Cipher, OVERHEAD_MAX};
pub use session::{Exhausted, HandOver, Received, Session, sealed_length};
pub use tickets::{FileKeys, KEYS_MAX as TICKET_KEYS_MAX, TicketKeys, WORDS as TICKET_WORDS};
