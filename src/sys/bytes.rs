//! Immutable bytes kept in RAM, shared by reference and counted.
//!
//! A body stays in memory while anything sends it, also after the cache let go of it; the gauge
//! counts it until the last reference is gone, so that the memory bound is a bound on what really
//! is in memory.

use std::cell::Cell;
use std::ops::{Deref, Range};
use std::rc::Rc;

/// How many bytes are held; clones count together.
#[derive(Clone, Default, Debug)]
pub struct Gauge(Rc<Cell<u64>>);

impl Gauge {
    /// Bytes held now.
    pub fn held(&self) -> u64 {
        self.0.get()
    }
}

#[derive(Debug)]
struct Counted {
    bytes: Box<[u8]>,
    gauge: Gauge,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gauge.0.set(self.gauge.0.get() - self.bytes.len() as u64);
    }
}

/// Shared immutable bytes.
#[derive(Clone, Debug)]
pub struct Bytes(Rc<Counted>);

impl Bytes {
    /// Takes `bytes` and counts them in `gauge` until the last clone is dropped.
    pub fn new(bytes: Vec<u8>, gauge: &Gauge) -> Self {
        gauge.0.set(gauge.0.get() + bytes.len() as u64);
        Self(Rc::new(Counted { bytes: bytes.into_boxed_slice(), gauge: gauge.clone() }))
    }

    /// Whether there are other clones, so that dropping this one frees nothing.
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// A part of shared bytes.
pub type Slice = (Bytes, Range<usize>);
