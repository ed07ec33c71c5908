//! Users of the system: looking one up, becoming one for good.

use std::ffi::{CStr, CString};

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
        drop_capabilities()?;
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

/// Becomes `user` where one is given; else gives up the capabilities a service manager may have granted
/// to a user who is not root. Root that was asked to stay root stays what it is.
///
/// # Errors
/// As [`User::become_it`].
pub fn give_up_privileges(user: Option<&User>) -> Result<(), Error> {
    match user {
        Some(user) => user.become_it(),
        None if is_root() => Ok(()),
        None => drop_capabilities(),
    }
}

fn drop_capabilities() -> Result<(), Error> {
    let none = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(|errno| Error::new("give up", "capabilities", errno))
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
