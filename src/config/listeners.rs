//! `[[listen]]`: where to listen, and what is believed of whoever connects there.

use super::file::{self, At};
use super::hosts;
use super::report::Text;
use super::resolve::{Resolver, is_set};
use super::{Address, Listen};

/// Owner and group may connect: the front-end server is put into the group.
const MODE: u32 = 0o660;

/// Resolves all listeners.
pub fn resolve(file: &file::File, own: &mut Resolver) -> Vec<Listen> {
    let Some(listen) = file.listen.as_ref().filter(|listen| !listen.value.is_empty()) else {
        own.absent(
            "listen",
            "there is nothing to listen on",
            "add [[listen]] with address = \"0.0.0.0:8080\"",
        );
        return Vec::new();
    };
    let mut listeners: Vec<Listen> = Vec::new();
    let help = match own.context.text {
        Text::File { .. } => "keep one [[listen]]",
        Text::Flags(_) => "name another port",
    };
    for table in &listen.value {
        let Some(listener) = one(table, own) else { continue };
        // Port 0 is another port each time.
        let anew = matches!(listener.address, Address::Tcp(address) if address.port() == 0);
        if let Some(address) = &table.address
            && !anew
            && listeners.iter().any(|other| other.address == listener.address)
        {
            own.problems.at(&address.span, format!("`{}` is listened on twice", address.value), help);
        }
        listeners.push(listener);
    }
    listeners
}

/// Where metrics are to be had.
pub fn metrics(file: &file::File, listen: &[Listen], own: &mut Resolver) -> Option<Address> {
    let table = file.metrics.as_ref()?;
    let Some(written) = &table.value.listen else {
        let help = "add listen = \"127.0.0.1:9090\", or remove [metrics]";
        own.problems.missing(&table.span, "metrics.listen", "[metrics] lacks its `listen`", help);
        return None;
    };
    let address = match hosts::address(&written.value) {
        Ok(address) => address,
        Err((what, _)) => {
            let help = "write \"127.0.0.1:9090\" for this machine only, or \"unix:/run/httpd/metrics.sock\"";
            own.problems.at(&written.span, what, help);
            return None;
        }
    };
    if listen.iter().any(|other| other.address == address) {
        let what = format!("`{}` is listened on by a [[listen]] too", written.value);
        own.problems.at(&written.span, what, "metrics need an address of their own");
    }
    if let Address::Tcp(tcp) = &address
        && tcp.ip().to_canonical().is_unspecified()
    {
        let what = format!("`{tcp}` gives metrics to every machine that can connect");
        let help = "write \"127.0.0.1:9090\", unless something else guards the port";
        own.problems.warn(&written.span, what, help);
    }
    Some(address)
}

fn one(table: &file::Listen, own: &mut Resolver) -> Option<Listen> {
    let proxy_protocol = is_set(&table.proxy_protocol);
    let trusted: Vec<_> = ranges(&table.trusted, own);
    if let Some(key) = table.proxy_protocol.as_ref().filter(|key| key.value)
        && table.trusted.as_ref().is_none_or(|trusted| trusted.value.is_empty())
    {
        let help = "add trusted = [\"10.0.0.0/8\"] with the addresses of the proxies: others could claim any address";
        own.problems.at(&key.span, "`listen.proxy_protocol` needs `trusted`", help);
    }
    let mode = table.mode.as_ref().and_then(|mode| octal(mode, own)).unwrap_or(MODE);
    let Some(written) = &table.address else {
        own.problems.missing(
            &table.at,
            "listen.address",
            "[[listen]] lacks its `address`",
            "add address = \"0.0.0.0:8080\"",
        );
        return None;
    };
    let address = match hosts::address(&written.value) {
        Ok(address) => address,
        Err(complaint) => {
            own.complain(&written.span, complaint);
            return None;
        }
    };
    if let (Some(mode), Address::Tcp(_)) = (&table.mode, &address) {
        own.problems.at(&mode.span, "`listen.mode` is for unix sockets only", "remove it");
    }
    Some(Listen { address, tls: is_set(&table.tls), proxy_protocol, trusted, mode })
}

/// Permission bits.
pub fn octal(mode: &At<String>, own: &mut Resolver) -> Option<u32> {
    let parsed = u32::from_str_radix(&mode.value, 8).ok().filter(|bits| *bits <= 0o777);
    if parsed.is_none() || mode.value.starts_with('+') {
        let what = format!("`{}` is not a file mode", mode.value);
        own.problems.at(&mode.span, what, "write three octal digits after a zero: \"0660\"");
    }
    parsed
}

/// Ranges of addresses; each bad one is reported.
pub fn ranges(texts: &Option<At<file::Strings>>, own: &mut Resolver) -> Vec<ipnet::IpNet> {
    let texts: &[At<String>] = texts.as_ref().map_or(&[], |texts| &texts.value);
    let mut ranges = Vec::new();
    for text in texts {
        match hosts::range(&text.value) {
            Ok(range) => ranges.push(range),
            Err(complaint) => own.complain(&text.span, complaint),
        }
    }
    ranges
}
