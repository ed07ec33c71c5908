//! multipart/byteranges (RFC 9110 section 14.6, RFC 2046 section 5.1): what stands around the parts.

use std::ops::Range;

use super::range::content_range;

/// A response of several parts of one representation.
#[derive(Clone, Copy, Debug)]
pub struct Multipart<'a> {
    /// Stands before each part and is to occur in none of them: the caller draws it by lot, long enough.
    pub boundary: &'a str,
    /// The media type of the representation.
    pub media_type: &'a str,
    /// The length of the representation.
    pub length: u64,
}

impl Multipart<'_> {
    /// The value of `Content-Type` for the whole.
    pub fn content_type(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary)
    }

    /// What precedes the bytes of a part. The CRLF before the delimiter belongs to it. Before the first it may be
    /// left out, as nothing precedes; but other servers write it there too, and clients have come to look for the
    /// whole delimiter: without it, zsync finds no part and asks again for ever.
    pub fn part_head(&self, range: &Range<u64>) -> Vec<u8> {
        let mut head = Vec::with_capacity(128);
        head.extend_from_slice(b"\r\n--");
        head.extend_from_slice(self.boundary.as_bytes());
        head.extend_from_slice(b"\r\nContent-Type: ");
        head.extend_from_slice(self.media_type.as_bytes());
        head.extend_from_slice(b"\r\nContent-Range: ");
        content_range(&mut head, range, self.length);
        head.extend_from_slice(b"\r\n\r\n");
        head
    }

    /// What follows the last part.
    pub fn end(&self) -> Vec<u8> {
        format!("\r\n--{}--\r\n", self.boundary).into_bytes()
    }

    /// The heads of all parts in turn, and the length of the whole content, end included.
    pub fn parts(&self, ranges: &[Range<u64>]) -> (Vec<Vec<u8>>, u64) {
        let heads: Vec<_> = ranges.iter().map(|range| self.part_head(range)).collect();
        let around: usize = heads.iter().map(Vec::len).sum::<usize>() + self.end().len();
        let within: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        (heads, around as u64 + within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9110 section 14.6, RFC 2046 section 5.1.1.
    #[test]
    fn parts_are_delimited_and_counted() {
        let body = b"0123456789";
        let multipart = Multipart { boundary: "THIS", media_type: "text/plain", length: 10 };
        assert_eq!(multipart.content_type(), "multipart/byteranges; boundary=THIS");
        let ranges = [7..9, 0..1];
        let (heads, length) = multipart.parts(&ranges);
        let mut content = Vec::new();
        for (head, range) in heads.iter().zip(&ranges) {
            content.extend_from_slice(head);
            content.extend_from_slice(&body[range.start as usize..range.end as usize]);
        }
        content.extend_from_slice(&multipart.end());
        let expected = "\r\n--THIS\r\nContent-Type: text/plain\r\nContent-Range: bytes 7-8/10\r\n\r\n78\r\n\
                        --THIS\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-0/10\r\n\r\n0\r\n\
                        --THIS--\r\n";
        assert_eq!(std::str::from_utf8(&content), Ok(expected));
        assert_eq!(length, content.len() as u64);
    }
}
