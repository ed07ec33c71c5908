//! The words of a query as arguments of a program (RFC 3875 section 4.4): what `<isindex>` was. Only where
//! the operator wants it: a program that takes options can be made to do much by them.

/// The words of a query, decoded; none where it holds an equals sign, or what is no encoding.
pub fn arguments(query: &[u8]) -> Vec<Vec<u8>> {
    if query.is_empty() || query.contains(&b'=') {
        return Vec::new();
    }
    let words: Option<Vec<_>> = query.split(|&byte| byte == b'+').map(decode).collect();
    words.unwrap_or_default()
}

fn decode(word: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        decoded.push((digit(high)? << 4 | digit(low)?) as u8);
        rest = after;
    }
    (!decoded.contains(&0)).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_at_plus_signs_and_decoded() {
        let check = |query: &str, expected: &[&str]| {
            let found = arguments(query.as_bytes());
            let found: Vec<_> = found.iter().map(|word| String::from_utf8_lossy(word)).collect();
            assert_eq!(found, expected, "{query:?}");
        };
        check("", &[]);
        check("one", &["one"]);
        check("one+two%20words+", &["one", "two words", ""]);
        check("a%2Bb%3dc", &["a+b=c"]);
        check("a=b", &[]);
        check("one+a=b", &[]);
        check("100%", &[]);
        check("one+%zz", &[]);
        check("one+%00", &[]);
    }
}
