//! Which form of a file a client gets (RFC 9110 section 12.5.3).
//!
//! The form most welcome to the client, of equally welcome ones the smallest. Nobody is refused for
//! what they accept: where nothing is welcome the file itself is sent, also to a client that says
//! `identity;q=0`, because 406 is a page that such a client cannot read either.
//!
//! What nearly all clients say is a set of codings, so the choice for each set is made once, with the
//! entry.

use std::cmp::Reverse;

use super::entry::{Coding, File, Representation};
use crate::http::accept::{Accepted, BROTLI, Codings, GZIP, Memo, Weight, ZSTD};
use crate::http::fields::Fields;

/// The form for a request; `None`: the client takes only the file itself, which the site does not
/// ship and nobody has decoded yet.
pub fn choose<'a>(file: &'a File, fields: &Fields<'_>, memo: &mut Memo) -> Option<&'a Representation> {
    let chosen = match &*file.representations {
        [only] if only.coding.is_none() => return Some(only),
        forms => match memo.accepted(fields) {
            Accepted::Alike(set) => file.choices.of(set),
            Accepted::Weighted(codings) => weigh(forms, &codings),
        },
    };
    // What cannot be decoded is sent as it is: its Content-Encoding says what to do with it.
    chosen.or(if file.undecodable { Some(0) } else { None }).and_then(|index| file.representations.get(index))
}

/// The choice for each set of codings that are equally welcome: the how-manieth form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choices([u8; 8]);

/// No form is for such clients.
const NONE: u8 = u8::MAX;

impl Choices {
    /// Makes the choices among these forms.
    pub fn among(forms: &[Representation]) -> Self {
        let mut choices = [NONE; 8];
        for (set, choice) in (0_u8..).zip(&mut choices) {
            let weight = |bit| if set & bit > 0 { 2 } else { 0 };
            let codings =
                Codings { brotli: weight(BROTLI), zstd: weight(ZSTD), gzip: weight(GZIP), identity: 1 };
            *choice = weigh(forms, &codings).and_then(|index| u8::try_from(index).ok()).unwrap_or(NONE);
        }
        Self(choices)
    }

    fn of(self, set: u8) -> Option<usize> {
        self.0.get(usize::from(set)).filter(|choice| **choice != NONE).map(|choice| usize::from(*choice))
    }
}

fn weigh(forms: &[Representation], codings: &Codings) -> Option<usize> {
    let acceptable = forms.iter().enumerate().filter(|(_, form)| weight(codings, form.coding) > 0);
    let best = acceptable.max_by_key(|(_, form)| (weight(codings, form.coding), Reverse(form.length)));
    best.map(|(index, _)| index).or_else(|| forms.iter().position(|form| form.coding.is_none()))
}

fn weight(codings: &Codings, coding: Option<Coding>) -> Weight {
    match coding {
        None => codings.identity,
        Some(Coding::Brotli) => codings.brotli,
        Some(Coding::Zstd) => codings.zstd,
        Some(Coding::Gzip) => codings.gzip,
    }
}

/// The coding for what is compressed while the client waits, and so cheaply: brotli is not among them.
pub fn cheap(fields: &Fields<'_>, memo: &mut Memo) -> Option<Coding> {
    let (zstd, gzip) = match memo.accepted(fields) {
        Accepted::Alike(set) => (set & ZSTD > 0, set & GZIP > 0),
        Accepted::Weighted(codings) => {
            let most = codings.zstd.max(codings.gzip);
            let is_best = |weight: Weight| weight > 0 && weight == most && weight >= codings.identity;
            (is_best(codings.zstd), is_best(codings.gzip))
        }
    };
    if zstd { Some(Coding::Zstd) } else { gzip.then_some(Coding::Gzip) }
}
