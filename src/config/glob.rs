//! Patterns of rules, matched against decoded paths, byte by byte.
//!
//! `*` stands for any bytes but a slash, `?` for one such byte, `**` for any bytes at all, and
//! `/**/` also for a single slash; `{a,b}` for either. A pattern without a leading slash matches at any
//! depth: `*.js` is `/**/*.js`. Everything else stands for itself; case matters, as it does in names.

/// How many patterns the braces of one may stand for.
const ALTERNATIVES_MAX: usize = 256;

/// How long a pattern may be, braces replaced. All states of a match stand on the stack.
const TOKENS_MAX: usize = 255;

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    alternatives: Vec<Alternative>,
}

/// A pattern without braces.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alternative {
    /// What it begins with, literally. Tells most paths apart.
    prefix: Vec<u8>,
    /// The rest.
    tokens: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `*`
    Segment,
    /// `**`
    Any,
    /// What follows the first slash of `/**/`: nothing, or anything that ends in a slash.
    Depth,
}

/// What is wrong with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadGlob {
    /// It matches nothing.
    Empty,
    /// A brace without its partner.
    Brace,
    /// The braces stand for too many patterns.
    TooMany,
    /// It is too long.
    TooLong,
}

impl BadGlob {
    /// For the operator.
    pub fn text(self) -> &'static str {
        match self {
            BadGlob::Empty => "an empty pattern matches nothing",
            BadGlob::Brace => "a brace lacks its partner",
            BadGlob::TooMany => "the braces stand for more than 256 patterns",
            BadGlob::TooLong => "the pattern is longer than 255 bytes",
        }
    }
}

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// When it is empty or too long, or its braces do not match up.
    pub fn new(pattern: &str) -> Result<Self, BadGlob> {
        if pattern.is_empty() {
            return Err(BadGlob::Empty);
        }
        let rooted = if pattern.starts_with('/') { pattern.into() } else { format!("/**/{pattern}") };
        let mut alternatives = Vec::new();
        expand(rooted.as_bytes(), &mut alternatives)?;
        let alternatives: Vec<_> = alternatives.iter().map(|pattern| parse(pattern)).collect();
        if alternatives.iter().any(|alternative| alternative.tokens.len() > TOKENS_MAX) {
            return Err(BadGlob::TooLong);
        }
        Ok(Self { alternatives })
    }

    /// Whether `path` fits.
    pub fn matches(&self, path: &[u8]) -> bool {
        self.alternatives.iter().any(|alternative| {
            path.strip_prefix(&*alternative.prefix).is_some_and(|rest| fits(&alternative.tokens, rest))
        })
    }
}

/// Replaces the first pair of braces by each of what it holds, and goes on with the results.
fn expand(pattern: &[u8], into: &mut Vec<Vec<u8>>) -> Result<(), BadGlob> {
    let Some(open) = pattern.iter().position(|byte| matches!(byte, b'{' | b'}')) else {
        into.push(pattern.to_vec());
        return if into.len() > ALTERNATIVES_MAX { Err(BadGlob::TooMany) } else { Ok(()) };
    };
    let (mut depth, mut commas, mut close) = (0_u32, vec![open], None);
    for (index, byte) in pattern.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1).ok_or(BadGlob::Brace)?,
            b',' if depth == 1 => commas.push(index),
            _ => {}
        }
        if depth == 0 {
            close = Some(index);
            break;
        }
    }
    let close = close.ok_or(BadGlob::Brace)?;
    commas.push(close);
    for pair in commas.windows(2) {
        let inner = &pattern[pair[0] + 1..pair[1]];
        expand(&[&pattern[..open], inner, &pattern[close + 1..]].concat(), into)?;
    }
    Ok(())
}

fn parse(mut pattern: &[u8]) -> Alternative {
    let (mut prefix, mut tokens) = (Vec::new(), Vec::new());
    while let Some((&first, rest)) = pattern.split_first() {
        if let Some(after) = pattern.strip_prefix(b"/**/") {
            tokens.extend([Token::Byte(b'/'), Token::Depth]);
            pattern = after;
        } else if let Some(after) = pattern.strip_prefix(b"**") {
            tokens.push(Token::Any);
            pattern = after;
        } else {
            match first {
                b'*' => tokens.push(Token::Segment),
                b'?' => tokens.push(Token::One),
                byte if tokens.is_empty() => prefix.push(byte),
                byte => tokens.push(Token::Byte(byte)),
            }
            pattern = rest;
        }
    }
    Alternative { prefix, tokens }
}

/// Follows all ways to read the pattern at once, so that the time grows with the product of the
/// lengths and no worse, whatever the path.
fn fits(tokens: &[Token], path: &[u8]) -> bool {
    let mut states = [false; TOKENS_MAX + 1];
    arrive(tokens, &mut states, 0);
    for byte in path {
        let mut next = [false; TOKENS_MAX + 1];
        let mut alive = false;
        for (index, token) in tokens.iter().enumerate().filter(|(index, _)| states[*index]) {
            let (stays, goes) = match token {
                Token::Byte(own) => (false, own == byte),
                Token::One => (false, *byte != b'/'),
                Token::Segment => (*byte != b'/', false),
                Token::Any => (true, false),
                Token::Depth => (true, *byte == b'/'),
            };
            if goes {
                arrive(tokens, &mut next, index + 1);
            }
            match token {
                // Halfway down a directory the rest must wait for its slash.
                Token::Depth => next[index] = true,
                _ if stays => arrive(tokens, &mut next, index),
                _ => {}
            }
            alive |= goes | stays;
        }
        if !alive {
            return false;
        }
        states = next;
    }
    states[tokens.len()]
}

/// Marks a state, and those that are reached from it without a byte.
fn arrive(tokens: &[Token], states: &mut [bool; TOKENS_MAX + 1], mut index: usize) {
    states[index] = true;
    while matches!(tokens.get(index), Some(Token::Segment | Token::Any | Token::Depth)) {
        index += 1;
        states[index] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_decoded_paths() {
        let check = |pattern: &str, path: &str, expected: bool| {
            let glob = Glob::new(pattern).expect(pattern);
            assert_eq!(glob.matches(path.as_bytes()), expected, "{pattern} on {path}");
        };
        check("/", "/", true);
        check("/", "/a", false);
        check("/a", "/a", true);
        check("/a", "/a/", false);
        check("/a*", "/abc", true);
        check("/a*", "/a/c", false);
        check("/a?c", "/abc", true);
        check("/a?c", "/a/c", false);
        check("/assets/**", "/assets/", true);
        check("/assets/**", "/assets/x/y.js", true);
        check("/assets/**", "/assets", false);
        check("/assets/**", "/assetsx/y", false);
        check("/**", "/", true);
        check("/**", "/a/b", true);
        check("/**/b", "/b", true);
        check("/**/b", "/a/c/b", true);
        check("/**/b", "/ab", false);
        check("/a/**/b", "/a/b", true);
        check("/a/**/b", "/a/x/y/b", true);
        check("/a/**/b", "/a/xb", false);
        check("/a/**/b/**/c", "/a/b/b/x/c", true);
        check("/a/**/b*/c", "/a/b1/x/b2/c", true);
        check("*.js", "/x.js", true);
        check("*.js", "/a/b/x.js", true);
        check("*.js", "/a/x.js/", false);
        check("*.{js,css}", "/a.css", true);
        check("*.{js,css}", "/a.html", false);
        check("/{a,b{1,2}}/x", "/b2/x", true);
        check("/{a,b{1,2}}/x", "/b/x", false);
        check("/*/*/c", "/a/b/c", true);
        check("/*a*b*c", "/xxaxxbxxc", true);
        check("/*a*b*c", "/xxaxxbxxcx", false);
        check("/**a*c", "/x/ab/abc", true);
        check("/a[1]+", "/a[1]+", true);
    }

    #[test]
    fn bad_patterns_are_told() {
        assert_eq!(Glob::new(""), Err(BadGlob::Empty));
        assert_eq!(Glob::new("/{a"), Err(BadGlob::Brace));
        assert_eq!(Glob::new("/a}"), Err(BadGlob::Brace));
        assert_eq!(Glob::new(&"{a,b}".repeat(9)), Err(BadGlob::TooMany));
        assert_eq!(Glob::new(&"*a".repeat(200)), Err(BadGlob::TooLong));
    }

    #[test]
    fn hostile_paths_take_bounded_time() {
        let glob = Glob::new("/**a*a*a*a*a*a*a*b").expect("a pattern");
        assert!(!glob.matches(&[b"/".as_slice(), &[b'a'; 4000]].concat()));
    }
}
