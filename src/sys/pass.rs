//! Notes between processes, and descriptors passed along with them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::{Errno, Error};

/// Two ends of a channel that keeps notes apart and in order, tells either end when the other is gone,
/// and has no name. Non-blocking and close-on-exec.
///
/// # Errors
/// Those of socketpair(2).
pub fn channel() -> Result<(OwnedFd, OwnedFd), Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| Error::new("open", "a channel to a worker", errno))
}

/// Sends one note, with a descriptor if one is given; the receiver gets a duplicate of it.
///
/// # Errors
/// EAGAIN when the channel is full, EPIPE when the other end is gone.
pub fn send(channel: impl AsFd, note: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the space was made for one descriptor");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&channel, &[IoSlice::new(note)], &mut ancillary, flags)
    })?;
    Ok(())
}

/// As many descriptors as [`send_all`] takes at once.
pub const DESCRIPTORS_MAX: usize = 4;

/// Sends one note with several descriptors, at most [`DESCRIPTORS_MAX`].
///
/// # Errors
/// As [`send`].
pub fn send_all(channel: impl AsFd, note: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "at most four descriptors are sent at once");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&channel, &[IoSlice::new(note)], &mut ancillary, flags)
    })?;
    Ok(())
}

/// Takes one note, and the descriptor that came along; a note of 0 bytes says that the other end is
/// gone. What does not fit is cut off.
///
/// # Errors
/// EAGAIN when there is none.
pub fn receive(channel: impl AsFd, into: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&channel, &mut [IoSliceMut::new(into)], &mut ancillary, flags)
    })?;
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, rights))
}

/// Takes one note and all descriptors that came along, up to four; waits for one where the channel is set
/// to. What does not fit is cut off.
///
/// # Errors
/// EAGAIN when there is none and the channel does not wait.
pub fn receive_all(channel: impl AsFd, into: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&channel, &mut [IoSliceMut::new(into)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut all = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            all.extend(descriptors);
        }
    }
    Ok((received.bytes, all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn notes_stay_apart_and_descriptors_come_along() {
        let (one, other) = channel().expect("a channel");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        send(&one, b"first", None).expect("sent");
        send(&one, b"second", Some(writer.as_fd())).expect("sent");
        drop(writer);
        let mut into = [0; 16];
        let (length, none) = receive(&other, &mut into).expect("a note");
        assert_eq!((&into[..length], none.is_none()), (&b"first"[..], true));
        let (length, passed) = receive(&other, &mut into).expect("a note");
        assert_eq!(&into[..length], b"second");
        let mut file = std::fs::File::from(passed.expect("a descriptor"));
        file.write_all(b"through").expect("written");
        drop(file);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("read to the end");
        assert_eq!(text, "through");
    }

    #[test]
    fn an_empty_channel_and_a_dead_one_are_told_apart() {
        let (one, other) = channel().expect("a channel");
        assert_eq!(receive(&one, &mut [0; 4]).expect_err("none").raw_os_error(), libc::EAGAIN);
        drop(other);
        assert_eq!(receive(&one, &mut [0; 4]).expect("the end").0, 0);
        assert_eq!(send(&one, b"x", None), Err(Errno::PIPE));
    }
}
