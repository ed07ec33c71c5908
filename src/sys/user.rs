//! Users of the system: looking one up, becoming one for good.

use std::ffi::{CStr, CString};

use rustix::thread::{CapabilitySet, CapabilitySets};

use super::process::last_errno;
use super::{Errno, Error};

/// A user of the system, looked up while that was still possible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The name.
    pub name: CString,
    /// The user's number.
    pub uid: u32,
    /// The number of the user's primary group.
    pub gid: u32,
    /// All groups the user is in.
    pub groups: Vec<u32>,
}

impl User {
    /// Looks a user up; `None` when there is no such user.
    ///
    /// # Errors
    /// When the system's user database cannot be read.
    pub fn find(name: &str) -> Result<Option<Self>, Error> {
        let refused = |errno| Error::new("look up user", name, errno);
        let Ok(name) = CString::new(name) else { return Ok(None) };
        let Some((uid, gid)) = entry(&name).map_err(refused)? else { return Ok(None) };
        let groups = groups(&name, gid).map_err(refused)?;
        Ok(Some(Self { name, uid, gid, groups }))
    }

    /// Becomes the user in all threads, for good, and gives up all capabilities.
    ///
    /// # Errors
    /// When the kernel refuses; the process must then end, since it may be half one and half the other.
    ///
    /// # Panics
    /// When privileges could be regained.
    pub fn become_it(&self) -> Result<(), Error> {
        let object = self.name.to_string_lossy();
        let check = |result| match result {
            0 => Ok(()),
            _ => Err(Error::new("become user", object.as_ref(), last_errno())),
        };
        // SAFETY: the pointer and the length are those of one vector. libc carries the change to every
        // thread of the process, which the bare system calls would not.
        check(unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) })?;
        // SAFETY: numbers only; as above.
        check(unsafe { libc::setresgid(self.gid, self.gid, self.gid) })?;
        // SAFETY: as above.
        check(unsafe { libc::setresuid(self.uid, self.uid, self.uid) })?;
        keep_rights(CapabilitySet::empty())?;
        if self.uid != 0 {
            // SAFETY: numbers only.
            let regained = unsafe { libc::setresuid(0, 0, 0) };
            assert!(regained != 0, "root could be regained");
        }
        Ok(())
    }
}

/// Whether the effective user is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// From now on neither this process nor what it executes can have any right but these. Without the right to
/// limit rights nothing happens: what has no privileges to gain any (`process::confine`) needs no such limit.
pub(super) fn limit_rights(rights: CapabilitySet) {
    for right in CapabilitySet::all().difference(rights).iter() {
        let _ = rustix::thread::remove_capability_from_bounding_set(right);
    }
    let _ = rustix::thread::clear_ambient_capability_set();
}

/// Gives up all rights but these, of which those that are held stay.
pub(super) fn keep_rights(rights: CapabilitySet) -> Result<(), Error> {
    let refused = |errno| Error::new("give up", "capabilities", errno);
    let held = rustix::thread::capabilities(None).map_err(refused)?;
    let kept = held.permitted.intersection(rights);
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(refused)
}

/// The numbers of the user and of its primary group.
fn entry(name: &CStr) -> Result<Option<(u32, u32)>, Errno> {
    // Directory services give long entries; what does not fit in a MiB is no user.
    let mut text = vec![0; 4096];
    loop {
        let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are to live memory of the lengths given, and `found` is null or points to
        // `entry` afterwards.
        let code = unsafe {
            libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &mut found)
        };
        match code {
            libc::ERANGE if text.len() < 1 << 20 => text.resize(text.len() * 4, 0),
            // Some databases say "no such user" by one of these instead of by success without an entry.
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: success with `found` set says that the entry was filled in.
                let entry = unsafe { entry.assume_init() };
                return Ok(Some((entry.pw_uid, entry.pw_gid)));
            }
            libc::EINTR => {}
            code => return Err(Errno::from_raw_os_error(code)),
        }
    }
}

/// All groups of the user, the primary one among them.
fn groups(name: &CStr, primary: u32) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = i32::try_from(groups.len()).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: `count` is the length of the vector, which getgrouplist does not write beyond.
        let written = unsafe { libc::getgrouplist(name.as_ptr(), primary, groups.as_mut_ptr(), &mut count) };
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        if written >= 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        // NGROUPS_MAX of Linux bounds what setgroups takes.
        if groups.len() >= 65536 {
            return Err(Errno::OVERFLOW);
        }
        groups.resize(count.max(groups.len() * 2), 0);
    }
}

/// Opens files, and looks into processes, as their owner may: for who may become others but has no right to read
/// everything. To be called by a process with one thread, which nothing else can see in between.
pub fn as_owner<T>(uid: u32, gid: u32, look: impl FnOnce() -> T) -> T {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    become_owner(uid, gid);
    let seen = look();
    become_owner(own.0, own.1);
    seen
}

/// For files only. What is refused changes nothing, and then neither does the next look succeed.
fn become_owner(uid: u32, gid: u32) {
    // SAFETY: changes whose files this thread may open, and nothing else.
    unsafe { libc::setfsgid(gid) };
    // SAFETY: as above.
    unsafe { libc::setfsuid(uid) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_and_nobody_else_by_an_odd_name() {
        let root = User::find("root").expect("a user database").expect("root");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(User::find("no such user").expect("a user database"), None);
        assert_eq!(User::find("nul\0byte").expect("a user database"), None);
    }
}
