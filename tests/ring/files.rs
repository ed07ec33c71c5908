//! Files: opening beneath a root, reading, appending, sending parts, and the helper thread.

use crate::*;

#[test]
fn opens_beneath_and_treats_symlinks_as_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("sub")).expect("a folder");
    fs::write(root.join("file"), "inside").expect("a file");
    fs::write(folder.path().join("secret"), "outside").expect("a file");
    symlink("file", root.join("link")).expect("a link");
    symlink("../secret", root.join("out")).expect("a link");
    symlink(folder.path().join("secret"), root.join("absolute")).expect("a link");
    symlink("loop", root.join("loop")).expect("a link");
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), rustix::fs::Mode::RUSR).expect("a fifo");

    use Symlinks::{Anywhere, Beneath, Never};
    let cases = [
        ("file", Never, Ok(Kind::File)),
        (".", Never, Ok(Kind::Directory)),
        ("sub", Beneath, Ok(Kind::Directory)),
        ("fifo", Never, Ok(Kind::Special)),
        ("none", Beneath, Err(Errno::NOENT)),
        ("file/below", Beneath, Err(Errno::NOTDIR)),
        ("link", Beneath, Ok(Kind::File)),
        ("link", Never, Err(Errno::LOOP)),
        ("link", Anywhere, Ok(Kind::File)),
        ("out", Beneath, Err(Errno::XDEV)),
        ("out", Never, Err(Errno::LOOP)),
        ("out", Anywhere, Ok(Kind::File)),
        ("absolute", Beneath, Err(Errno::XDEV)),
        ("absolute", Anywhere, Ok(Kind::File)),
        ("loop", Anywhere, Err(Errno::LOOP)),
    ];
    each_way(&options(), |rig| {
        let dir = Rc::new(rig.ring.open_root(&root).expect("the root"));
        for (name, symlinks, expected) in cases {
            let op = Op::Open { dir: Rc::clone(&dir), path: path(name), symlinks };
            let completion = rig.run(1, op);
            let kind = completion.result.map(|_| match completion.payload {
                Payload::Descriptor(file) => rig.ring.facts(file.fd()).expect("facts").kind,
                other => panic!("{other:?} instead of a descriptor"),
            });
            assert_eq!(kind, expected, "{name} {symlinks:?}");
            match rig.ring.open_cached(dir.fd(), &path(name), symlinks) {
                Ok(file) => assert_eq!(rig.ring.facts(file.fd()).map(|facts| facts.kind), expected),
                Err(Errno::AGAIN) => {}
                Err(errno) => assert_eq!(Err(errno), expected, "{name} {symlinks:?}, cached"),
            }
        }
        assert!(rig.ring.open_root(&root.join("file")).is_err(), "a root is a directory");
    });
}

#[test]
fn a_root_may_be_a_symlink() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("release")).expect("a folder");
    fs::write(folder.path().join("release/file"), "x").expect("a file");
    symlink("release", folder.path().join("current")).expect("a link");
    each_way(&options(), |rig| {
        let dir = Rc::new(rig.ring.open_root(&folder.path().join("current")).expect("the root"));
        let op = Op::Open { dir, path: path("file"), symlinks: Symlinks::Never };
        assert!(rig.run(1, op).result.is_ok());
    });
}

#[test]
fn reads_through_the_ring_and_from_the_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("file");
    let contents: Vec<u8> = (0..100_000_u32).map(|n| (n % 253) as u8).collect();
    fs::write(&name, &contents).expect("a file");
    let cases = [(0, 10), (5, 99_995), (0, 200_000), (99_999, 5), (100_000, 5), (65_536, 4096)];
    each_way(&options(), |rig| {
        let file = Rc::new(rig.own(fs::File::open(&name).expect("the file")));
        let facts = rig.ring.facts(file.fd()).expect("facts");
        assert_eq!((facts.kind, facts.size), (Kind::File, 100_000));
        assert!(facts.modified.seconds > 1_500_000_000 && facts.inode != 0);
        for (offset, length) in cases {
            let expected = &contents[offset..contents.len().min(offset + length)];
            let mut into = Vec::with_capacity(length + 4);
            into.extend(b"head");
            let op = Op::Read { file: Rc::clone(&file), offset: offset as u64, into, length };
            let completion = rig.run(1, op);
            let read = completion.result.expect("a read");
            let buffer = memory(completion);
            assert_eq!(buffer.len(), 4 + read);
            assert!(buffer.starts_with(b"head") && expected.starts_with(&buffer[4..]));
            assert_eq!(read == 0, expected.is_empty(), "0 only at the end");

            let mut into = b"head".to_vec();
            into.reserve_exact(length);
            match rig.ring.read_cached(file.fd(), offset as u64, &mut into, length) {
                Ok(read) => assert!(expected.starts_with(&into[4..]) && into.len() == 4 + read),
                Err(errno) => assert_eq!((errno, into.len()), (Errno::AGAIN, 4)),
            }
        }
        let mut small = Vec::with_capacity(64);
        let room = small.capacity();
        if let Ok(read) = rig.ring.read_cached(file.fd(), 0, &mut small, 100_000) {
            assert_eq!(read, room, "no more than there is room for");
        }
        assert!(rig.ring.resident(file.fd(), 5..5));
        assert!(
            !rig.ring.resident(file.fd(), 1 << 40..(1 << 40) + 4096) || rig.ring.resident(file.fd(), 0..1)
        );
    });
}

#[test]
fn files_in_memory_are_resident() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    fs::write(folder.path().join("file"), vec![7; 50_000]).expect("a file");
    each_way(&options(), |rig| {
        let file = rig.own(fs::File::open(folder.path().join("file")).expect("the file"));
        assert!(rig.ring.resident(file.fd(), 0..50_000));
        let mut into = Vec::with_capacity(50_000);
        assert_eq!(rig.ring.read_cached(file.fd(), 0, &mut into, 50_000), Ok(50_000));
        assert!(into == vec![7; 50_000]);
    });
}

#[test]
fn appends_to_files_and_sockets() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("log");
    each_way(&options(), |rig| {
        fs::write(&name, "old\n").expect("a file");
        let log = rig.own(fs::OpenOptions::new().append(true).open(&name).expect("the file"));
        for line in ["one\n", "two\n"] {
            let completion = rig.run(1, Op::Append { fd: log.fd(), bytes: line.into() });
            assert_eq!(completion.result, Ok(4));
            assert_eq!(memory(completion), line.as_bytes());
        }
        assert_eq!(fs::read_to_string(&name).expect("the file"), "old\none\ntwo\n");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let writer = rig.own(writer);
        assert_eq!(rig.run(1, Op::Append { fd: writer.fd(), bytes: b"abc".to_vec() }).result, Ok(3));
        let mut got = [0; 3];
        reader.read_exact(&mut got).expect("what was written");
        assert_eq!(&got, b"abc");
    });
}

#[test]
fn sends_parts_of_files() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), "0123456789").expect("a file");
    each_way(&options(), |rig| {
        let file = rig.own(fs::File::open(folder.path().join("file")).expect("the file"));
        let (socket, mut peer) = rig.pair();
        assert_eq!(rig.ring.send_file(socket.fd(), file.fd(), 3, 4), Ok(4));
        assert_eq!(rig.ring.send_file(socket.fd(), file.fd(), 8, 100), Ok(2));
        assert_eq!(rig.ring.send_file(socket.fd(), file.fd(), 10, 100), Ok(0));
        let mut got = [0; 6];
        peer.read_exact(&mut got).expect("what was sent");
        assert_eq!(&got, b"345689");
    });
}

#[test]
fn the_helper_lists_directories() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("list")).expect("a folder");
    let list = folder.path().join("list");
    fs::create_dir(list.join("sub")).expect("a folder");
    fs::write(list.join("file"), "12345").expect("a file");
    symlink("file", list.join("link")).expect("a link");
    symlink("../elsewhere", list.join("out")).expect("a link");
    let shape = |rig: &mut Rig, symlinks, names_max| {
        let directory = rig.directory(&list);
        let completion = rig.run(1, Op::Delegate(Job::List { directory, symlinks, names_max }));
        assert_eq!(completion.result, Ok(0));
        let Payload::Done(Done::Listed { mut names, truncated }) = completion.payload else {
            panic!("no names")
        };
        names.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<_> = names
            .into_iter()
            .map(|found| {
                let name = String::from_utf8(found.name).expect("a name of ours");
                (name, found.facts.map(|facts| (facts.kind, facts.size)))
            })
            .collect();
        (names, truncated)
    };
    each_way(&options(), |rig| {
        let (names, truncated) = shape(rig, Symlinks::Beneath, 100);
        assert!(!truncated);
        assert_eq!(names.len(), 4);
        assert_eq!(names[0], ("file".into(), Some((Kind::File, 5))));
        assert_eq!(names[1], ("link".into(), Some((Kind::File, 5))));
        assert_eq!(names[2], ("out".into(), None));
        assert!(matches!(&names[3], (name, Some((Kind::Directory, _))) if name == "sub"));
        let (names, _) = shape(rig, Symlinks::Never, 4);
        assert_eq!(names[1], ("link".into(), None));
        let (names, truncated) = shape(rig, Symlinks::Never, 3);
        assert_eq!((names.len(), truncated), (3, true));

        let file = rig.directory(&list.join("file"));
        let job = Job::List { directory: file, symlinks: Symlinks::Never, names_max: 1 };
        assert_eq!(rig.run(1, Op::Delegate(job)).result, Err(Errno::NOTDIR));
    });
}

#[test]
fn the_helper_verifies_passwords() {
    // Cost 4, the least there is.
    let hash = bcrypt::hash("right", 4).expect("a hash");
    each_way(&options(), |rig| {
        let cases =
            [("right", hash.as_str(), true), ("wrong", hash.as_str(), false), ("right", "junk", false)];
        // All at once: answers come one after another, by one bell.
        for (slot, (password, hash, _)) in cases.into_iter().enumerate() {
            let job = Job::VerifyPassword { password: password.into(), hash: hash.into() };
            rig.push(slot as u32, Op::Delegate(job));
        }
        for (slot, (password, _, expected)) in cases.into_iter().enumerate() {
            let completion = rig.next(slot as u32);
            let Payload::Done(Done::Verified(verified)) = completion.payload else { panic!("no verdict") };
            assert_eq!(verified, expected, "{password}");
        }
    });
}
