//! What a program is started with: its arguments and its environment, of what a worker says and what is known
//! where programs are started. Pure.
//!
//! A worker that was taken over says what it likes, to programs that may run as somebody else. So the names of
//! variables are those that follow from requests, whatever else comes, LD_PRELOAD, BASH_ENV or GIT_CONFIG_COUNT,
//! being somebody's code to run; and what decides which file a program opens, is not the worker's to say.

use std::path::Path;

use super::cgi::variables;
use super::messages::Start;
use super::script::Script;
use crate::config::{Mount, MountKind};

/// What a program finds commands in, unless the mount says otherwise; its own environment is not the
/// server's.
const PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// The arguments, each made of parts: its name, and where the mount has it so the words of the query.
pub fn arguments(mount: &Mount, script: &Script, start: &Start<'_>, mut push: impl FnMut(&[&[u8]])) {
    push(&[match mount.kind {
        MountKind::Process(_) => &script.file,
        MountKind::Module(_) => &script.name,
    }]);
    start.arguments.iter().filter(|_| mount.arguments).for_each(|argument| push(&[argument]));
}

/// The environment, each variable made of parts: what depends on the file (RFC 3875 section 4.1), what the
/// worker says, and what the mount gives, which holds against both.
pub fn environment(
    (root, mount): (&Path, &Mount),
    script: &Script,
    unique: &str,
    start: &Start<'_>,
    mut push: impl FnMut(&[&[u8]]),
) {
    let is_given = |name: &[u8]| mount.env.iter().any(|(given, _)| given.as_bytes() == name);
    push(&[b"SCRIPT_NAME=", &script.name]);
    push(&[b"SCRIPT_FILENAME=", &script.file]);
    if let Some(translated) = &script.translated {
        push(&[b"PATH_INFO=", &script.info]);
        push(&[b"PATH_TRANSLATED=", translated]);
    }
    push(&[b"UNIQUE_ID=", unique.as_bytes()]);
    if !is_given(b"DOCUMENT_ROOT") {
        push(&[b"DOCUMENT_ROOT=", root.as_os_str().as_encoded_bytes()]);
    }
    // A module has nothing to find.
    if matches!(mount.kind, MountKind::Process(_)) && !is_given(b"PATH") {
        push(&[b"PATH=", PATH]);
    }
    for variable in start.variables.iter() {
        let name = variable.split(|byte| *byte == b'=').next().unwrap_or_default();
        if variables::is_name(name) && !is_given(name) {
            push(&[variable]);
        }
    }
    for (name, value) in &mount.env {
        push(&[name.as_bytes(), b"=", value.as_bytes()]);
    }
}

/// The number under which the worker logs the request, where it says one.
pub fn request_id<'a>(start: &Start<'a>) -> Option<&'a [u8]> {
    start.variables.iter().find_map(|one| one.strip_prefix(b"REQUEST_ID="))
}
