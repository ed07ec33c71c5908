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

    /// How many bytes of content follow the head.
    fn content_length(&self, to_head: bool) -> Result<usize, String> {
        if self.field("transfer-encoding").is_some() {
            return Err("a transfer coding was not expected".into());
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
            (100..200 | 204 | 304, _) => Ok(0),
            (_, None) => Err(format!("a {} without Content-Length", self.status)),
            (_, Some(_)) if to_head => Ok(0),
            (_, Some(length)) => Ok(length),
        }
    }
}

/// Takes bytes as they come.
#[derive(Default)]
pub struct Reader {
    input: Vec<u8>,
    /// A head that was read, and the length of its content.
    head: Option<(Response, usize)>,
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
                let length = response.content_length(to_head)?;
                if response.status < 200 {
                    continue;
                }
                self.head = Some((response, length));
            }
            let Some((mut response, length)) = self.head.take_if(|(_, length)| *length <= self.input.len())
            else {
                return Ok(None);
            };
            response.body = self.input.drain(..length).collect();
            return Ok(Some(response));
        }
    }

    /// Bytes of content that came for the response that has begun.
    pub fn part(&self) -> &[u8] {
        &self.input
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
