//! Files of users and password hashes, one `name:hash` a line. Only bcrypt: the other forms that such files
//! can hold (crypt, salted MD5, plain SHA-1) are guessed in seconds today.

/// Users and hashes, and what is wrong: line, sentence, help. Neither hash nor line is ever repeated.
pub type Read = (Vec<(String, String)>, Vec<(u32, String, String)>);

/// Length of a bcrypt hash: `$2y$`, two digits of cost, `$`, 22 letters of salt, 31 of hash.
const HASH_LENGTH: usize = 60;

/// Reads such a file.
pub fn parse(text: &str) -> Read {
    const MAKE: &str = "make it with `htpasswd -B`";
    let (mut users, mut problems) = (Vec::<(String, String)>::new(), Vec::new());
    for (line, text) in (1u32..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let mut complain = |what: String, help: &str| problems.push((line, what, help.to_owned()));
        match text.split_once(':') {
            None => complain("this is not `name:hash`".to_owned(), MAKE),
            Some(("", _)) => complain("the name is missing before the colon".to_owned(), ""),
            Some((name, _)) if users.iter().any(|(other, _)| other == name) => {
                complain(format!("user `{name}` stands here for the second time"), "keep one");
            }
            Some((name, hash)) if is_bcrypt(hash) => users.push((name.to_owned(), hash.to_owned())),
            Some((name, _)) => complain(format!("the hash of user `{name}` is not bcrypt ($2y$...)"), MAKE),
        }
    }
    (users, problems)
}

fn is_bcrypt(hash: &str) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/');
    let bytes = hash.as_bytes();
    let cost = hash.get(4..6).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    bytes.len() == HASH_LENGTH
        && ["$2a$", "$2b$", "$2y$"].iter().any(|kind| hash.starts_with(kind))
        && cost.is_some_and(|cost| ("04"..="31").contains(&cost))
        && bytes.get(6) == Some(&b'$')
        && bytes.get(7..).is_some_and(|rest| rest.iter().all(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe";

    #[test]
    fn bcrypt_is_told_from_the_rest() {
        assert!(is_bcrypt(HASH));
        for other in [
            "",
            "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/",
            "{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE=",
            &HASH[..59],
            &HASH.replace("$2y$", "$2x$"),
            &HASH.replace("$05$", "$99$"),
            &HASH.replace("$05$", "$+5$"),
            &HASH.replace("bvIG", "bv:G"),
        ] {
            assert!(!is_bcrypt(other), "{other}");
        }
    }

    #[test]
    fn lines_are_read_and_complained_about() {
        let text = format!("# staff\n\nann:{HASH}\r\nbob:secret\ncarl\n:{HASH}\nann:{HASH}\n");
        let (users, problems) = parse(&text);
        assert_eq!(users, [("ann".to_owned(), HASH.to_owned())]);
        let lines: Vec<u32> = problems.iter().map(|(line, ..)| *line).collect();
        assert_eq!(lines, [4, 5, 6, 7]);
        assert!(problems.iter().all(|(_, what, _)| !what.contains("secret")));
    }
}
