//! Sockets: sending, receiving, accepting, cancelling, closing, notes; and queues that are too small.

use crate::*;

/// Head, where to begin in it, the part of the body, and what arrives.
type SendCase = (&'static [u8], usize, Option<Range<usize>>, &'static str);

#[test]
fn sends_head_body_and_both() {
    let gauge = Gauge::default();
    let body = Bytes::new(b"0123456789".to_vec(), &gauge);
    let cases: [SendCase; 6] = [
        (b"head", 0, None, "head"),
        (b"head", 2, None, "ad"),
        (b"head", 0, Some(0..10), "head0123456789"),
        (b"head", 3, Some(2..5), "d234"),
        (b"head", 4, Some(9..10), "9"),
        (b"", 0, Some(0..3), "012"),
    ];
    each_way(&options(), |rig| {
        let (socket, mut peer) = rig.pair();
        for (head, from, range, expected) in cases.clone() {
            let body = range.map(|range| (body.clone(), range));
            let op = Op::Send { socket: socket.fd(), head: head.to_vec(), from, body, more: false };
            let sent = rig.run(1, op);
            assert_eq!(sent.result, Ok(expected.len()));
            assert_eq!(memory(sent), head, "the head comes back");
            let mut got = vec![0; expected.len()];
            peer.read_exact(&mut got).expect("what was sent");
            assert_eq!(got, expected.as_bytes());
        }
        drop(socket);
    });
    assert_eq!(gauge.held(), 10, "the ring let go of every reference but ours");
}

#[test]
fn receives_what_comes_and_then_the_end() {
    each_way(&options(), |rig| {
        let (socket, mut peer) = rig.pair();
        rig.push(1, Op::Receive { socket: socket.fd() });
        rig.ring.turn(Some(Instant::now()), &mut rig.completions).expect("a turn");
        assert!(rig.completions.is_empty(), "nothing was sent yet");
        peer.write_all(b"hello").expect("room for it");
        let completion = rig.next(1);
        assert_eq!(rig.received(completion), Ok(b"hello".to_vec()));

        // More than the buffers hold: each receive takes at most one.
        let long: Vec<u8> = (0..20_000).map(|n| n as u8).collect();
        peer.write_all(&long).expect("room for it");
        drop(peer);
        let mut got = Vec::new();
        loop {
            let piece = rig.receive(2, socket.fd()).expect("a piece");
            assert!(piece.len() <= 4096);
            if piece.is_empty() {
                break;
            }
            got.extend(piece);
        }
        assert!(got == long);
        assert_eq!(rig.ring.leases_free(), 8);
    });
}

#[test]
fn a_receive_without_a_free_buffer_fails_and_may_be_repeated() {
    let options = Options { leases: 2, ..options() };
    each_way(&options, |rig| {
        let (socket, mut peer) = rig.pair();
        let mut leases = Vec::new();
        for text in [b"a", b"b"] {
            peer.write_all(text).expect("room for it");
            match rig.run(1, Op::Receive { socket: socket.fd() }).payload {
                Payload::Lease(lease) => leases.push(lease),
                other => panic!("{other:?} instead of a lease"),
            }
        }
        assert_eq!(rig.ring.leases_free(), 0);
        peer.write_all(b"c").expect("room for it");
        assert_eq!(rig.receive(1, socket.fd()), Err(Errno::NOBUFS));
        assert_eq!(rig.ring.leased(&leases[0]), b"a");
        assert_eq!(rig.ring.leased(&leases[1]), b"b");
        leases.drain(..).for_each(|lease| rig.ring.release(lease));
        assert_eq!(rig.ring.leases_free(), 2);
        assert_eq!(rig.receive(1, socket.fd()), Ok(b"c".to_vec()));
    });
}

#[test]
fn buffers_go_round_many_times() {
    // 70 000 is more than the ring's 16-bit count.
    each_way(&Options { leases: 4, lease_bytes: 1, ..options() }, |rig| {
        let (socket, mut peer) = rig.pair();
        let sent: Vec<u8> = (0..70_000_u32).map(|n| (n % 251) as u8).collect();
        for piece in sent.chunks(500) {
            peer.write_all(piece).expect("room for it");
            for &byte in piece {
                assert_eq!(rig.receive(1, socket.fd()), Ok(vec![byte]));
            }
        }
    });
}

#[test]
fn a_send_is_short_when_the_socket_is_full() {
    let gauge = Gauge::default();
    each_way(&options(), |rig| {
        let (socket, mut peer) = rig.pair();
        let whole = 8 << 20;
        let body = Bytes::new(vec![b'x'; whole], &gauge);
        let op = Op::Send {
            socket: socket.fd(),
            head: b"h".to_vec(),
            from: 0,
            body: Some((body, 0..whole)),
            more: false,
        };
        let sent = rig.run(1, op).result.expect("a part was sent");
        assert!(sent > 0 && sent < whole, "{sent} of {whole}");
        assert_eq!(rig.ring.send_now(socket.fd(), b"?"), Err(Errno::AGAIN));
        assert!(rig.ring.unsent(socket.fd()) > 0);

        rig.push(2, Op::Writable { socket: socket.fd() });
        rig.ring.turn(Some(Instant::now()), &mut rig.completions).expect("a turn");
        assert!(rig.completions.is_empty(), "it is still full");
        let mut got = vec![0; sent];
        peer.read_exact(&mut got).expect("what was sent");
        assert!(rig.next(2).result.is_ok());
        assert_eq!(rig.ring.send_now(socket.fd(), b"!"), Ok(1));
    });
}

#[test]
fn a_send_to_nobody_is_an_error_and_no_signal() {
    each_way(&options(), |rig| {
        let (socket, peer) = rig.pair();
        drop(peer);
        let op = Op::Send { socket: socket.fd(), head: b"x".to_vec(), from: 0, body: None, more: false };
        assert_eq!(rig.run(1, op).result, Err(Errno::PIPE));
    });
}

#[test]
fn cancel_completes_what_is_pending() {
    each_way(&options(), |rig| {
        let (socket, mut peer) = rig.pair();
        rig.push(1, Op::Receive { socket: socket.fd() });
        rig.push(2, Op::Readable { fd: socket.fd() });
        rig.push(3, Op::Cancel { fd: socket.fd() });
        assert_eq!(rig.next(1).result, Err(Errno::CANCELED));
        assert_eq!(rig.next(2).result, Err(Errno::CANCELED));
        assert!(rig.next(3).result.is_ok());

        // Too late: the bytes are there. Either answer will do, but there must be one.
        rig.push(1, Op::Receive { socket: socket.fd() });
        rig.ring.turn(Some(Instant::now()), &mut rig.completions).expect("a turn");
        peer.write_all(b"late").expect("room for it");
        rig.push(3, Op::Cancel { fd: socket.fd() });
        let completion = rig.next(1);
        assert!(matches!(rig.received(completion), Ok(_) | Err(Errno::CANCELED)));
        rig.next(3);
        assert_eq!(rig.ring.leases_free(), 8);
    });
}

#[test]
fn shutdown_completes_a_pending_receive() {
    each_way(&options(), |rig| {
        let (socket, mut peer) = rig.pair();
        rig.push(1, Op::Receive { socket: socket.fd() });
        rig.ring.turn(Some(Instant::now()), &mut rig.completions).expect("a turn");
        rig.ring.shutdown(socket.fd(), false);
        let mut rest = Vec::new();
        assert_eq!(peer.read_to_end(&mut rest).expect("the end"), 0);
        rig.ring.shutdown(socket.fd(), true);
        assert_eq!(rig.next(1).result, Ok(0));
    });
}

#[test]
fn accept_goes_on_until_cancelled() {
    each_way(&options(), |rig| {
        let listener =
            TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("its address");
        let listener = rig.own(listener);
        rig.push(1, Op::Accept { listener: listener.fd() });
        let mut accepted = Vec::new();
        for _ in 0..3 {
            let client = TcpStream::connect(address).expect("a connection");
            let completion = rig.next(1);
            assert!(completion.more);
            let Payload::Descriptor(socket) = completion.payload else { panic!("no descriptor") };
            assert_eq!(rig.ring.peer(socket.fd()), client.local_addr().ok());
            assert_eq!(rig.ring.local(socket.fd()), Some(address));
            assert_eq!(rig.ring.send_now(socket.fd(), b"hi"), Ok(2));
            accepted.push((socket, client));
        }
        rig.push(2, Op::Cancel { fd: listener.fd() });
        let last = rig.next(1);
        assert!(!last.more);
        assert_eq!(last.result, Err(Errno::CANCELED));
        rig.next(2);
        for (socket, mut client) in accepted {
            drop(socket);
            let _ = rig.ring.turn(Some(Instant::now()), &mut rig.completions);
            let mut text = String::new();
            client.read_to_string(&mut text).expect("what was sent, and the end");
            assert_eq!(text, "hi");
        }
    });
}

#[test]
fn an_ipv4_client_of_an_ipv6_listener_has_an_ipv4_address() {
    each_way(&options(), |rig| {
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        let port = listener.local_addr().expect("its address").port();
        let Ok(client) = TcpStream::connect(("127.0.0.1", port)) else { return };
        let socket = rig.own(listener.accept().expect("the connection").0);
        assert_eq!(rig.ring.peer(socket.fd()), client.local_addr().ok());
        assert!(rig.ring.local(socket.fd()).is_some_and(|address| address.is_ipv4()));
    });
}

#[test]
fn an_accept_that_fails_ends() {
    each_way(&options(), |rig| {
        let (socket, _peer) = rig.pair();
        let completion = rig.run(1, Op::Accept { listener: socket.fd() });
        assert!(completion.result.is_err() && !completion.more);
    });
}

#[test]
fn unix_sockets_have_no_address() {
    each_way(&options(), |rig| {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("socket");
        let listener = rig.own(UnixListener::bind(&name).expect("a listener"));
        rig.push(1, Op::Accept { listener: listener.fd() });
        let _client = UnixStream::connect(&name).expect("a connection");
        let Payload::Descriptor(socket) = rig.next(1).payload else { panic!("no descriptor") };
        assert_eq!(rig.ring.peer(socket.fd()), None);
        assert_eq!(rig.ring.local(socket.fd()), None);
        rig.run(2, Op::Cancel { fd: listener.fd() });
    });
}

#[test]
fn a_deadline_ends_the_wait() {
    each_way(&options(), |rig| {
        let (socket, _peer) = rig.pair();
        rig.push(1, Op::Receive { socket: socket.fd() });
        let until = Instant::now() + Duration::from_millis(20);
        while rig.ring.clock().now < until {
            rig.ring.turn(Some(until), &mut rig.completions).expect("a turn");
        }
        assert!(rig.completions.is_empty());
        assert!(rig.ring.clock().now >= until);
        // A deadline of the past does not wait at all, but what is there is taken.
        let op = Op::Send { socket: socket.fd(), head: b"x".to_vec(), from: 0, body: None, more: false };
        rig.push(2, op);
        rig.ring.turn(Some(until), &mut rig.completions).expect("a turn");
        assert_eq!(rig.completions.len(), 1);
    });
}

#[test]
fn what_is_buried_is_closed_after_what_is_queued() {
    each_way(&options(), |rig| {
        let (socket, mut peer) = rig.pair();
        let number = socket.fd();
        let op = Op::Send { socket: number, head: b"last".to_vec(), from: 0, body: None, more: false };
        rig.push(1, op);
        drop(socket);
        assert!(!rig.ring.graveyard().is_empty());
        assert_eq!(rig.next(1).result, Ok(4));
        assert!(rig.ring.graveyard().is_empty());
        let mut text = String::new();
        peer.read_to_string(&mut text).expect("what was sent, and the end");
        assert_eq!(text, "last");
    });
}

#[test]
fn a_socket_shut_down_may_be_closed_with_ops_in_flight() {
    let gauge = Gauge::default();
    each_way(&options(), |rig| {
        let (socket, mut peer) = rig.pair();
        let body = Bytes::new(vec![b'x'; 4 << 20], &gauge);
        while rig.ring.send_now(socket.fd(), &body[..65_536]).is_ok() {}
        rig.push(1, Op::Receive { socket: socket.fd() });
        let body = Some((body, 0..4 << 20));
        rig.push(2, Op::Send { socket: socket.fd(), head: Vec::new(), from: 0, body, more: false });
        rig.ring.turn(Some(Instant::now()), &mut rig.completions).expect("a turn");
        rig.ring.shutdown(socket.fd(), true);
        drop(socket);
        rig.ring.turn(Some(Instant::now()), &mut rig.completions).expect("a turn");
        // Takes the number of the closed one; what comes here is for nobody else.
        let (other, mut other_peer) = rig.pair();
        other_peer.write_all(b"other").expect("room for it");
        assert_eq!(rig.next(1).result, Ok(0));
        assert!(rig.next(2).result.is_err());
        assert_eq!(rig.receive(3, other.fd()), Ok(b"other".to_vec()));
        peer.read_to_end(&mut Vec::new()).expect("the end");
    });
    assert_eq!(gauge.held(), 0);
}

#[test]
fn notes_come_with_descriptors() {
    each_way(&options(), |rig| {
        let (channel, peer) = rig.pair();
        let mut note = [0; 16];
        assert_eq!(rig.ring.note(channel.fd(), &mut note).map(|_| ()), Err(Errno::AGAIN));

        (&peer).write_all(b"plain").expect("room for it");
        rig.run(1, Op::Readable { fd: channel.fd() }).result.expect("something to read");
        assert!(matches!(rig.ring.note(channel.fd(), &mut note), Ok((5, None))));

        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        send_descriptor(&peer, &reader);
        let Ok((1, Some(came))) = rig.ring.note(channel.fd(), &mut note) else { panic!("no descriptor") };
        assert_ne!(came.fd().0, reader.as_raw_fd());
        drop(reader);
        writer.write_all(b"x").expect("a reader is left: the one that came");
        drop(peer);
        assert!(matches!(rig.ring.note(channel.fd(), &mut note), Ok((0, None))));
    });
}

fn send_descriptor(socket: &UnixStream, descriptor: &impl std::os::fd::AsFd) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let parts = [std::io::IoSlice::new(b"D")];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::empty()).expect("a note");
}

#[test]
fn tiny_queues_lose_nothing() {
    each_way(&Options { submissions: 2, completions: 4, ..options() }, |rig| {
        let pairs: Vec<_> = (0..200).map(|_| rig.pair()).collect();
        for (slot, (socket, peer)) in pairs.iter().enumerate() {
            (&*peer).write_all(b"x").expect("room for it");
            rig.push(slot as u32, Op::Readable { fd: socket.fd() });
        }
        for slot in 0..200 {
            assert!(rig.next(slot).result.is_ok());
        }
        assert!(rig.completions.is_empty());
        assert!(rig.ring.overflows() > 0, "the queue was large enough");
    });
}

#[test]
fn a_refused_key_leaves_the_socket_as_it_was() {
    each_way(&options(), |rig| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let socket = rig.own(listener.accept().expect("the connection").0);
        assert!(rig.ring.install_tls(socket.fd(), &[0; 40]).is_err());
        let op = Op::Send { socket: socket.fd(), head: b"plain".to_vec(), from: 0, body: None, more: true };
        assert_eq!(rig.run(1, op).result, Ok(5));
        assert_eq!(rig.ring.send_now(socket.fd(), b"!"), Ok(1));
        let mut got = [0; 6];
        client.read_exact(&mut got).expect("what was sent");
        assert_eq!(&got, b"plain!");
    });
}

#[test]
fn a_ring_ends_with_ops_in_flight() {
    let gauge = Gauge::default();
    each_way(&options(), |rig| {
        let (socket, _peer) = rig.pair();
        let body = Bytes::new(vec![0; 8 << 20], &gauge);
        let mut sent = 0;
        while rig.ring.send_now(socket.fd(), &body[..65_536]).is_ok() {
            sent += 1;
        }
        assert!(sent > 0);
        let op = Op::Send {
            socket: socket.fd(),
            head: Vec::new(),
            from: 0,
            body: Some((body, 0..100)),
            more: false,
        };
        rig.push(1, op);
        rig.push(2, Op::Receive { socket: socket.fd() });
        rig.ring.turn(Some(Instant::now()), &mut rig.completions).expect("a turn");
        let Some((other, _)) = ring(&options()) else { return };
        rig.ring = other;
        assert_eq!(gauge.held(), 0, "the send was cancelled, and its memory came back");
    });
}
