//! stub
use crate::config::LogFormat;
use crate::files::entry::Coding;
use crate::http::request::Version;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
pub struct Record<'a> {
    pub client: Option<IpAddr>,
    pub user: Option<&'a str>,
    pub wall: SystemTime,
    pub method: &'a [u8],
    pub target: &'a [u8],
    pub version: Version,
    pub host: &'a [u8],
    pub referer: Option<&'a [u8]>,
    pub user_agent: Option<&'a [u8]>,
    pub status: u16,
    pub bytes: u64,
    pub duration: Duration,
    pub coding: Option<Coding>,
    pub tls: Option<&'static str>,
    pub request_id: u64,
}
#[derive(Debug)]
pub struct AccessLog {
    pending: Vec<u8>,
    format: LogFormat,
}
impl AccessLog {
    pub fn new(format: LogFormat) -> Self {
        Self { pending: Vec::new(), format }
    }
    pub fn write(&mut self, record: &Record) {
        let _ = (record, self.format);
    }
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
    pub fn discard(&mut self) -> u64 {
        self.pending.clear();
        0
    }
    pub fn take(&mut self, spare: Vec<u8>) -> Vec<u8> {
        std::mem::replace(&mut self.pending, spare)
    }
}
