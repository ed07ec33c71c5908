//! One request and its response, as far as it outlives the bytes it came in.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use crate::files::Question;
use crate::files::entry::Entry;
use crate::observe::access_log::Record;

/// A request whose answer needs something looked up. Its bytes stay in the connection's input and
/// are parsed again when the answer is there: misses are rare, and nothing has to be copied for hits.
#[derive(Debug, Default)]
pub struct Pending {
    /// What was found so far.
    pub found: Vec<(Question, Rc<Entry>)>,
}

/// What the access log says of a response that takes a while to send.
#[derive(Debug)]
pub struct Logged {
    began: Instant,
    time: SystemTime,
    client: Option<IpAddr>,
    user: Option<Vec<u8>>,
    method: Vec<u8>,
    target: Vec<u8>,
    protocol: String,
    host: Vec<u8>,
    referer: Option<Vec<u8>>,
    user_agent: Option<Vec<u8>>,
    status: u16,
    bytes: u64,
    coding: Option<String>,
    tls: Option<String>,
    request_id: u64,
}

impl Logged {
    /// Keeps a copy of `record`.
    pub fn keep(record: &Record, began: Instant) -> Self {
        Self {
            began,
            time: record.time,
            client: record.client,
            user: record.user.map(<[u8]>::to_vec),
            method: record.method.to_vec(),
            target: record.target.to_vec(),
            protocol: record.protocol.to_owned(),
            host: record.host.to_vec(),
            referer: record.referer.map(<[u8]>::to_vec),
            user_agent: record.user_agent.map(<[u8]>::to_vec),
            status: record.status,
            bytes: record.bytes,
            coding: record.coding.map(str::to_owned),
            tls: record.tls.map(str::to_owned),
            request_id: record.request_id,
        }
    }

    /// The response has begun, with this status and coding.
    pub fn answered(&mut self, status: u16, coding: Option<&str>) {
        self.status = status;
        self.coding = coding.map(str::to_owned);
    }

    /// So many more bytes belong to the response.
    pub fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// The record, of which `unsent` bytes did not go.
    pub fn record(&self, now: Instant, unsent: u64) -> Record<'_> {
        Record {
            time: self.time,
            client: self.client,
            user: self.user.as_deref(),
            method: &self.method,
            target: &self.target,
            protocol: &self.protocol,
            host: &self.host,
            referer: self.referer.as_deref(),
            user_agent: self.user_agent.as_deref(),
            status: self.status,
            bytes: self.bytes.saturating_sub(unsent),
            duration: now.saturating_duration_since(self.began),
            coding: self.coding.as_deref(),
            tls: self.tls.as_deref(),
            request_id: self.request_id,
        }
    }
}
