//! Reads responses as strictly as RFC 9112 allows a client to be: any liberty is a failure.

/// A final response.
#[derive(Clone, Debug, Default)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn says_close(&self) -> bool {
        self.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// How the content that follows the head is framed.
    fn framing(&self, to_head: bool) -> Result<Framing, String> {
        match (self.field("transfer-encoding"), self.field("content-length")) {
            (None, _) => {}
            (Some("chunked"), None) if to_head => return Ok(Framing::Length(0)),
            (Some("chunked"), None) => return Ok(Framing::Chunked),
            (coding, length) => return Err(format!("coding {coding:?} with length {length:?}")),
        }
        let stated = match self.field("content-length") {
            None => None,
            Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() => {
                Some(text.parse().map_err(|_| format!("Content-Length {text}"))?)
            }
            Some(text) => return Err(format!("Content-Length {text}")),
        };
        match (self.status, stated) {
            (100..200 | 204, Some(_)) => Err(format!("Content-Length in a {}", self.status)),
            (100..200 | 204 | 304, _) => Ok(Framing::Length(0)),
            (_, Some(_)) if to_head => Ok(Framing::Length(0)),
            (_, Some(length)) => Ok(Framing::Length(length)),
            (_, None) if to_head => Ok(Framing::Length(0)),
            (_, None) if self.says_close() => Ok(Framing::UntilClose),
            (_, None) => Err(format!("a {} without Content-Length", self.status)),
        }
    }
}

/// How the end of a response is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// Takes bytes as they come.
#[derive(Default)]
pub struct Reader {
    input: Vec<u8>,
    /// A head that was read, and how its content is framed.
    head: Option<(Response, Framing)>,
}

impl Reader {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Whether a response has begun.
    pub fn is_within(&self) -> bool {
        !self.input.is_empty() || self.head.is_some()
    }

    /// The head of the response that has begun, if there is one.
    pub fn begun(&self) -> Option<&Response> {
        self.head.as_ref().map(|(head, _)| head)
    }

    /// The next whole response; `to_head`: it answers a HEAD. Interim responses are passed over.
    pub fn next(&mut self, to_head: bool) -> Result<Option<Response>, String> {
        loop {
            if self.head.is_none() {
                let Some(end) = self.input.windows(4).position(|four| four == b"\r\n\r\n") else {
                    return match self.input.len() {
                        ..8192 => Ok(None),
                        _ => Err("a head without end".into()),
                    };
                };
                let head: Vec<u8> = self.input.drain(..end + 4).collect();
                let response = head_of(&head[..end])?;
                let framing = response.framing(to_head)?;
                if response.status < 200 {
                    continue;
                }
                self.head = Some((response, framing));
            }
            let Some((_, framing)) = &self.head else { return Ok(None) };
            let (body, length) = match framing {
                Framing::UntilClose => return Ok(None),
                Framing::Length(length) if *length > self.input.len() => return Ok(None),
                Framing::Length(length) => (self.input[..*length].to_vec(), *length),
                Framing::Chunked => match chunks(&self.input)? {
                    Some(whole) => whole,
                    None => return Ok(None),
                },
            };
            self.input.drain(..length);
            return Ok(self.head.take().map(|(response, _)| Response { body, ..response }));
        }
    }

    /// The response that ends with the connection, if that is how it was framed.
    pub fn finish(&mut self) -> Option<Response> {
        let (response, _) = self.head.take_if(|(_, framing)| *framing == Framing::UntilClose)?;
        Some(Response { body: std::mem::take(&mut self.input), ..response })
    }

    /// Bytes of content that came for the response that has begun.
    pub fn part(&self) -> &[u8] {
        &self.input
    }
}

/// A chunked body and how many bytes it took, once all of it is there (RFC 9112 section 7.1).
fn chunks(input: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some(end) = input[at..].windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
        let text = String::from_utf8_lossy(&input[at..at + end]).into_owned();
        let size = usize::from_str_radix(&text, 16).map_err(|_| format!("a chunk of size {text:?}"))?;
        let begin = at + end + 2;
        let Some(rest) = input.get(begin..).filter(|rest| rest.len() >= size + 2) else { return Ok(None) };
        if &rest[size..size + 2] != b"\r\n" {
            return Err(format!("a chunk of {size} that does not end there"));
        }
        body.extend_from_slice(&rest[..size]);
        at = begin + size + 2;
        if size == 0 {
            return Ok(Some((body, at)));
        }
    }
}

fn head_of(bytes: &[u8]) -> Result<Response, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "a head that is not ASCII".to_string())?;
    if text.bytes().any(|byte| byte >= 0x7f || (byte < b' ' && !matches!(byte, b'\r' | b'\n'))) {
        return Err(format!("control bytes in the head {text:?}"));
    }
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let status = line
        .strip_prefix("HTTP/1.1 ")
        .filter(|rest| rest.as_bytes().get(3) == Some(&b' '))
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or_else(|| format!("status line {line:?}"))?;
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or_else(|| format!("field line {line:?}"))?;
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty()
            || !name.bytes().all(token)
            || value.trim() != value
            || value.contains(['\r', '\n'])
        {
            return Err(format!("field line {line:?}"));
        }
        let name = name.to_ascii_lowercase();
        let once = ["content-length", "date", "etag", "content-type", "connection", "location", "server"];
        if once.contains(&name.as_str()) && fields.iter().any(|(found, _)| *found == name) {
            return Err(format!("{name} appears twice"));
        }
        fields.push((name, value.into()));
    }
    if status >= 200 && !fields.iter().any(|(name, _)| name == "date") {
        return Err(format!("a {status} without Date"));
    }
    Ok(Response { status, fields, body: Vec::new() })
}
