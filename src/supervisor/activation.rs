//! Socket activation, by the protocol of sd_listen_fds(3): listeners that the service manager opened
//! for us, or kept for us since we ran before ([`super::store`]), stand at the numbers from 3 on.

use super::listeners::{Adopted, Origin};
use super::store;
use crate::sys::sockets;

/// The first number; a constant of the protocol.
const FIRST: i32 = 3;

/// Names of the descriptors that the environment announces.
pub fn names() -> Vec<String> {
    let variable = |name| std::env::var(name).ok();
    let announced = Announced::read(
        variable("LISTEN_PID").as_deref(),
        variable("LISTEN_FDS").as_deref(),
        variable("LISTEN_FDNAMES").as_deref(),
        std::process::id(),
    );
    announced.names
}

/// Takes over what the environment announces. To be called once, before anything is opened.
pub fn adopt() -> Vec<Adopted> {
    let names = names();
    let fds = sockets::adopt((FIRST..).take(names.len()));
    let mut adopted = Vec::new();
    for ((fd, name), number) in fds.into_iter().zip(names).zip(FIRST..) {
        let Some(fd) = fd else {
            tracing::warn!("socket activation announced descriptor {number} ({name}), which is not open");
            continue;
        };
        match sockets::place(&fd) {
            Ok(Some(place)) => {
                if let Err(errno) = sockets::prepare_adopted(&fd, &place) {
                    tracing::warn!("socket {number} ({name}) of socket activation: {errno}");
                }
                // What was kept is ours, one socket for each worker.
                let origin = if store::is_ours(&name) { Origin::Predecessor } else { Origin::Activation };
                adopted.push(Adopted { place, fd, origin, file: None });
            }
            Ok(None) | Err(_) => {
                tracing::warn!(
                    "descriptor {number} ({name}) of socket activation is no listening stream socket"
                );
            }
        }
    }
    adopted
}

/// The names of the descriptors that are announced.
#[derive(PartialEq, Eq, Debug)]
struct Announced {
    names: Vec<String>,
}

impl Announced {
    fn read(pid: Option<&str>, count: Option<&str>, names: Option<&str>, own_pid: u32) -> Self {
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
        // The variables are inherited by processes that they are not meant for.
        let is_ours = number(pid) == Some(own_pid);
        let count = number(count).filter(|_| is_ours).unwrap_or_default();
        let mut given = names.unwrap_or_default().split(':');
        let name = |_| given.next().filter(|name| !name.is_empty()).unwrap_or("unnamed").to_owned();
        // More than any process can have open is nonsense.
        Self { names: (0..count.min(1 << 16)).map(name).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_to_us_and_only_that() {
        fn check(variables: [Option<&str>; 3], expected: &[&str]) {
            let [pid, count, names] = variables;
            assert_eq!(Announced::read(pid, count, names, 7).names, expected);
        }
        check([Some("7"), Some("2"), Some("http:https")], &["http", "https"]);
        check([Some("7"), Some("3"), Some("http")], &["http", "unnamed", "unnamed"]);
        check([Some("7"), Some("1"), None], &["unnamed"]);
        check([Some("8"), Some("2"), None], &[]);
        check([None, Some("2"), None], &[]);
        check([Some("7"), None, Some("http")], &[]);
        check([Some("7"), Some("-1"), None], &[]);
    }
}
