//! Memory shared between the supervisor and the processes it forks: one page of 64-bit cells.
//!
//! The page is anonymous and inherited by fork, so it has no name anybody else could open; or it is one of a
//! file in memory, which can be kept over an exec. Cells are only reached as atomics, which makes sharing sound without a lock; nothing here orders one cell
//! against another.

use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

use super::{Errno, Error, memory_file};

/// How many cells a page has: 4096 bytes of them, the smallest page of any Linux.
pub const CELLS: usize = 512;

/// Its size.
pub(super) const BYTES: usize = size_of::<[AtomicU64; CELLS]>();

/// A page of atomics. Clones share it within the process, forked children share it across.
#[derive(Clone)]
pub struct Page(Arc<Mapping>);

struct Mapping(NonNull<[AtomicU64; CELLS]>);

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

// SAFETY: the mapping stays where it is until the last owner is gone and is only reached as `&AtomicU64`s,
// which any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Page {
    /// A new page, all zeros.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new() -> Result<Self, Error> {
        // SAFETY: no address is asked for, so nothing that is mapped is replaced.
        let address =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), BYTES, ACCESS, MapFlags::SHARED) };
        Self::at(address)
    }

    /// The page of a file that [`memory_file::page`] made.
    ///
    /// # Errors
    /// EINVAL when it is no such file, and those of mmap(2).
    pub fn of(file: &OwnedFd) -> Result<Self, Error> {
        if !memory_file::is_page(file) {
            return Self::at(Err(Errno::INVAL));
        }
        // SAFETY: as above; and the file is a page, whose size nobody can change any more.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, ACCESS, MapFlags::SHARED, file, 0) };
        Self::at(address)
    }

    fn at(address: Result<*mut c_void, Errno>) -> Result<Self, Error> {
        let refused = |errno| Error::new("map", "a page of shared counters", errno);
        let cells = NonNull::new(address.map_err(refused)?.cast()).ok_or(refused(Errno::NOMEM))?;
        Ok(Self(Arc::new(Mapping(cells))))
    }

    /// Keeps it mapped until the process ends.
    pub fn forever(self) -> &'static [AtomicU64; CELLS] {
        Box::leak(Box::new(self))
    }
}

impl Deref for Page {
    type Target = [AtomicU64; CELLS];

    fn deref(&self) -> &Self::Target {
        // SAFETY: mapped for as long as `self.0` lives, aligned to a page, and zeros are valid atomics.
        unsafe { self.0.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the last owner, so no reference into the mapping is left.
        let unmapped = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), BYTES) };
        assert!(unmapped.is_ok(), "a page we mapped cannot be unmapped");
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Page")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn clones_share_the_cells() {
        let page = Page::new().expect("a page");
        let clone = page.clone();
        clone[CELLS - 1].fetch_add(7, Relaxed);
        drop(clone);
        assert_eq!(page[CELLS - 1].load(Relaxed), 7);
        assert_eq!(page[0].load(Relaxed), 0);
    }

    #[test]
    fn a_file_of_a_page_is_mapped_and_no_other() {
        let file = memory_file::page().expect("a file");
        let (one, other) = (Page::of(&file).expect("a page"), Page::of(&file).expect("the same"));
        one[1].store(5, Relaxed);
        assert_eq!(other[1].load(Relaxed), 5);
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
        let text = memory_file::holding(&[0; BYTES]).expect("a file");
        assert_eq!(Page::of(&text).expect_err("its size may change").errno, Errno::INVAL);
    }
}
