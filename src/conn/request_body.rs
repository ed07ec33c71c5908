//! Request bodies nobody wants: read and dropped within a bound, so that the connection can be used
//! again (RFC 9112 section 9.3), else the connection ends after its response.

use crate::http1::chunked::Decoder;
use crate::http1::framing::Framing;

/// Bytes of an unwanted body that are read to keep a connection; more costs more than a new one.
const DISCARD_MAX: u64 = 64 * 1024;

/// A body being dropped.
#[derive(Debug)]
pub struct Discard {
    rest: Rest,
    budget: u64,
}

/// What is still to come of a body.
#[derive(Debug)]
pub enum Rest {
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked(Decoder),
}

/// The body is not worth reading for the sake of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

/// What became of a piece of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// All of the piece belonged to the body, and more is to come.
    More,
    /// The body ended after that many bytes of the piece.
    Done(usize),
    /// The body is malformed or too long to be worth reading.
    GiveUp,
}

impl Discard {
    /// For a body so framed; `None` when there is none.
    ///
    /// # Errors
    /// When it is known to be too long.
    pub fn begin(framing: Framing) -> Result<Option<Self>, TooLong> {
        let rest = match framing {
            Framing::None | Framing::Length(0) => return Ok(None),
            Framing::Length(length) if length > DISCARD_MAX => return Err(TooLong),
            Framing::Length(length) => Rest::Length(length),
            Framing::Chunked => Rest::Chunked(Decoder::default()),
        };
        Ok(Some(Self { rest, budget: DISCARD_MAX }))
    }

    /// For what is left of a body that was invited: the client will see the answer only once it has sent all.
    pub fn invited(rest: Rest, budget: u64) -> Self {
        Self { rest, budget }
    }

    /// Drops what belongs to the body from the front of `bytes`.
    pub fn discard(&mut self, bytes: &[u8]) -> Progress {
        match &mut self.rest {
            Rest::Length(rest) => {
                if *rest <= bytes.len() as u64 {
                    return Progress::Done(*rest as usize);
                }
                *rest -= bytes.len() as u64;
                Progress::More
            }
            Rest::Chunked(decoder) => discard_chunks(decoder, &mut self.budget, bytes),
        }
    }
}

fn discard_chunks(decoder: &mut Decoder, budget: &mut u64, bytes: &[u8]) -> Progress {
    let mut at = 0;
    while at < bytes.len() {
        let Ok(step) = decoder.decode(&bytes[at..]) else {
            return Progress::GiveUp;
        };
        at += step.consumed;
        if step.done {
            return Progress::Done(at);
        }
        if step.consumed == 0 {
            break;
        }
    }
    *budget = budget.saturating_sub(bytes.len() as u64);
    if *budget == 0 { Progress::GiveUp } else { Progress::More }
}
