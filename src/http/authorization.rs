//! Credentials of the Basic scheme (RFC 7617). Whether they are right is decided elsewhere.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use zeroize::Zeroizing;

/// A user and a password, wiped from memory when dropped.
pub struct Credentials {
    decoded: Zeroizing<Vec<u8>>,
    colon: usize,
}

impl Credentials {
    /// Everything before the first colon.
    pub fn user(&self) -> &[u8] {
        &self.decoded[..self.colon]
    }

    /// Everything behind it.
    pub fn password(&self) -> &[u8] {
        &self.decoded[self.colon + 1..]
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
        to.write_str("Credentials(..)")
    }
}

/// Reads the value of `Authorization`; `None` for other schemes and for what makes no sense, which all
/// lead to the same 401.
pub fn basic(value: &[u8]) -> Option<Credentials> {
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let encoded = super::fields::trim(rest);
    let decoded = Zeroizing::new(BASE64.decode(encoded).ok()?);
    let colon = decoded.iter().position(|&byte| byte == b':')?;
    Some(Credentials { decoded, colon })
}

/// Some clients leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, expected: Option<(&str, &str)>) {
        let found = basic(value.as_bytes());
        let found = found.as_ref().map(|found| (found.user(), found.password()));
        assert_eq!(found, expected.map(|(user, password)| (user.as_bytes(), password.as_bytes())), "{value}");
    }

    /// RFC 7617 section 2.
    #[test]
    fn credentials_are_decoded() {
        check("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", Some(("Aladdin", "open sesame")));
        check("basic  QWxhZGRpbjpvcGVuIHNlc2FtZQ", Some(("Aladdin", "open sesame")));
        check("Basic dGVzdDoxMjPCow==", Some(("test", "123\u{a3}")));
        check("Basic YTpiOmM=", Some(("a", "b:c")));
        check("Basic Og==", Some(("", "")));
        for bad in [
            "",
            "Basic",
            "Basic ",
            "BasicQWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            "Basic !!!",
            "Basic YWJj",
            "Bearer YTpi",
        ] {
            check(bad, None);
        }
    }
}
