//! Passwords: whom a request names, and what is remembered of checks made before.
//!
//! A bcrypt check takes tens of milliseconds by design, so it is made elsewhere, once, and its
//! verdict remembered for a while under a keyed hash: what is kept tells nothing without the key,
//! and a password changed in the file, which changes the stored hash, is asked for anew.
//!
//! An unknown user is checked as well, against another user's hash and whatever the outcome in
//! vain, so that the time of an answer does not tell who has an account.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use hashbrown::HashMap;

use super::Credential;
use crate::config::Auth;

/// How long a right password is remembered.
const RIGHT_FOR: Duration = Duration::from_secs(300);

/// How long a wrong one is: for the request that waits, and for a client that insists.
const WRONG_FOR: Duration = Duration::from_secs(10);

/// How many verdicts are remembered; the oldest go first. About 100 KiB.
const VERDICTS_MAX: usize = 1024;

/// Whether a request may go on.
#[derive(Debug)]
pub enum Admission {
    /// It may.
    Granted,
    /// It may not: 401.
    Denied,
    /// That depends on a check.
    Verify(Credential),
}

/// The challenge of a 401 (RFC 7617 section 2); passwords are read as UTF-8, which it says.
pub fn challenge(realm: &str) -> String {
    let realm = realm.replace('\\', "\\\\").replace('"', "\\\"");
    format!("Basic realm=\"{realm}\", charset=\"UTF-8\"")
}

/// The verdicts.
pub struct Verdicts {
    key: hmac::Key,
    verdicts: HashMap<[u8; 32], Verdict>,
    /// In the order in which they end to be remembered, as far as that is known.
    order: VecDeque<[u8; 32]>,
}

struct Verdict {
    right: bool,
    until: Instant,
}

impl Verdicts {
    /// Nothing remembered yet. `secret` is random.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
            verdicts: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Whether a user and password, as the client sent them, open what `auth` protects.
    pub fn admit(&self, auth: &Auth, user: &[u8], password: &[u8], now: Instant) -> Admission {
        let known = auth.users.iter().find(|(name, _)| name.as_bytes() == user);
        let Some((_, hash)) = known.or(auth.users.first()) else { return Admission::Denied };
        let key = self.name(known.is_some(), user, password, hash);
        match self.verdicts.get(&key) {
            Some(verdict) if verdict.until > now => match verdict.right && known.is_some() {
                true => Admission::Granted,
                false => Admission::Denied,
            },
            _ => Admission::Verify(Credential { key, password: password.to_vec(), hash: hash.clone() }),
        }
    }

    /// Remembers a verdict.
    pub fn note(&mut self, key: [u8; 32], right: bool, now: Instant) {
        let until = now + if right { RIGHT_FOR } else { WRONG_FOR };
        if self.verdicts.insert(key, Verdict { right, until }).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > VERDICTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.verdicts.remove(&oldest);
        }
    }

    /// Each part is preceded by its length, so that no two credentials have the same name.
    fn name(&self, known: bool, user: &[u8], password: &[u8], hash: &str) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&[u8::from(known)]);
        for part in [user, password, hash.as_bytes()] {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut name = [0; 32];
        name.copy_from_slice(context.sign().as_ref());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth(hash: &str) -> Auth {
        Auth { realm: "staff".into(), users: vec![("ann".into(), hash.into()), ("bob".into(), "2".into())] }
    }

    fn asked(admission: Admission) -> Credential {
        match admission {
            Admission::Verify(credential) => credential,
            other => panic!("to be verified, not {other:?}"),
        }
    }

    #[test]
    fn a_verdict_is_remembered_for_a_while() {
        let now = Instant::now();
        let mut verdicts = Verdicts::new(&[7; 32]);
        let credential = asked(verdicts.admit(&auth("1"), b"ann", b"secret", now));
        assert_eq!((credential.hash.as_str(), &*credential.password), ("1", b"secret".as_slice()));
        verdicts.note(credential.key, true, now);
        assert!(matches!(verdicts.admit(&auth("1"), b"ann", b"secret", now), Admission::Granted));
        asked(verdicts.admit(&auth("1"), b"ann", b"secret", now + RIGHT_FOR));
        asked(verdicts.admit(&auth("1"), b"ann", b"other", now));
        asked(verdicts.admit(&auth("changed"), b"ann", b"secret", now));
        asked(verdicts.admit(&auth("1"), b"bob", b"secret", now));

        let wrong = asked(verdicts.admit(&auth("1"), b"ann", b"other", now));
        verdicts.note(wrong.key, false, now);
        assert!(matches!(verdicts.admit(&auth("1"), b"ann", b"other", now), Admission::Denied));
    }

    #[test]
    fn an_unknown_user_is_checked_in_vain() {
        let now = Instant::now();
        let mut verdicts = Verdicts::new(&[7; 32]);
        let credential = asked(verdicts.admit(&auth("1"), b"eve", b"secret", now));
        assert_eq!(credential.hash, "1", "another user's hash, so that it takes as long");
        verdicts.note(credential.key, true, now);
        assert!(matches!(verdicts.admit(&auth("1"), b"eve", b"secret", now), Admission::Denied));
        asked(verdicts.admit(&auth("1"), b"ann", b"secret", now));
        let nobody = Auth { realm: String::new(), users: Vec::new() };
        assert!(matches!(verdicts.admit(&nobody, b"ann", b"", now), Admission::Denied));
    }

    #[test]
    fn memory_is_bounded_and_the_latest_verdict_stays() {
        let now = Instant::now();
        let mut verdicts = Verdicts::new(&[7; 32]);
        for number in 0..2 * VERDICTS_MAX {
            let password = number.to_string();
            let credential = asked(verdicts.admit(&auth("1"), b"ann", password.as_bytes(), now));
            verdicts.note(credential.key, false, now);
            assert!(matches!(
                verdicts.admit(&auth("1"), b"ann", password.as_bytes(), now),
                Admission::Denied
            ));
        }
        assert_eq!(verdicts.verdicts.len(), VERDICTS_MAX);
    }
}
