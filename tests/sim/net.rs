//! Sockets in memory: two pipes of bounded capacity each, ends that close one by one, and resets.

use std::collections::VecDeque;

/// A connection between a client and the worker.
#[derive(Debug, Default)]
pub struct Socket {
    pub client: usize,
    /// On its way to the worker.
    pub inbound: VecDeque<u8>,
    /// On its way to the client.
    pub outbound: VecDeque<u8>,
    pub inbound_max: usize,
    pub outbound_max: usize,
    /// The client will send no more.
    pub client_finished: bool,
    /// The client is gone, or the network: both ends see a reset.
    pub broken: bool,
    /// The worker will send no more.
    pub server_finished: bool,
    /// The worker reads no more.
    pub server_deaf: bool,
    /// The worker has closed its descriptor.
    pub server_closed: bool,
    /// The client was told that its bytes found nobody.
    pub reset_by_server: bool,
    /// Bytes the worker ever sent.
    pub sent: u64,
}

/// What a client's read gives.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    Bytes(Vec<u8>),
    Nothing,
    End,
    Reset,
}

impl Socket {
    pub fn new(client: usize, inbound_max: usize, outbound_max: usize) -> Self {
        Self { client, inbound_max, outbound_max, ..Self::default() }
    }

    /// Room towards the client.
    pub fn room(&self) -> usize {
        self.outbound_max.saturating_sub(self.outbound.len())
    }

    /// Whether a send would fail now.
    pub fn is_dead_for_sending(&self) -> bool {
        self.broken || self.server_finished
    }

    /// The worker's descriptor is closed. `destroys`: a reset overtakes what is under way.
    pub fn close_by_server(&mut self, destroys: bool) {
        self.server_closed = true;
        self.server_finished = true;
        if !self.inbound.is_empty() {
            self.reset(destroys);
        }
    }

    fn reset(&mut self, destroys: bool) {
        self.reset_by_server = true;
        self.inbound.clear();
        if destroys {
            self.outbound.clear();
        }
    }

    /// Some of `bytes` go on their way to the worker; how many.
    pub fn write_by_client(&mut self, bytes: &[u8], destroys: bool) -> usize {
        if self.server_closed || self.broken {
            // The answer to bytes that nobody wants is a reset; they count as written.
            if !self.broken {
                self.reset(destroys);
            }
            return bytes.len();
        }
        let count = bytes.len().min(self.inbound_max - self.inbound.len());
        self.inbound.extend(&bytes[..count]);
        count
    }

    pub fn read_by_client(&mut self, length: usize) -> Got {
        if self.broken {
            return Got::Reset;
        }
        if !self.outbound.is_empty() {
            let count = length.min(self.outbound.len());
            return Got::Bytes(take(&mut self.outbound, count));
        }
        if self.reset_by_server {
            return Got::Reset;
        }
        if self.server_finished { Got::End } else { Got::Nothing }
    }

    /// The client or the network is gone.
    pub fn break_down(&mut self) {
        self.broken = true;
        self.inbound.clear();
        self.outbound.clear();
    }
}

/// Takes the first bytes of a pipe.
pub fn take(pipe: &mut VecDeque<u8>, count: usize) -> Vec<u8> {
    let (first, second) = pipe.as_slices();
    let of_first = count.min(first.len());
    let taken = [&first[..of_first], &second[..count - of_first]].concat();
    pipe.drain(..count);
    taken
}
