//! RFC 9112: requests and responses as HTTP/1 puts them on the wire, and the PROXY protocol that may
//! stand before them. Bytes in, values out, and the reverse; who reads and writes them is not known here.

pub mod chunked;
pub mod framing;
pub mod head;
pub mod persistence;
pub mod proxy_protocol;
pub mod refusal;
pub mod write;
