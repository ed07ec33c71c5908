"""What happens to sessions while they last and afterwards: key updates, ends of all sorts, resumption wherever it is tried.
RFC 8446 sections 4.6.3 and 6.1."""

import os
import signal
import socket
import ssl

from kit import Failed, Talk, find, require, wait_until
from visits import VERSIONS, CLIENTS, bodies, s_client

RESUMED = 40


def check_key_update(setting):
    """Both kinds, between requests and within a body; the server answers those that ask for it with its own."""
    site, trace = setting.site("p256.test"), f"{setting.work}/key-update.trace"
    ask = f"HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode()
    command = s_client(find("openssl"), setting.server, site.host, setting.authority.root, "1.3", "-msg", "-msgfile", trace)
    # With it letters are no commands.
    command.remove("-ign_eof")
    updates = 0

    def update(talk, letter):
        nonlocal updates
        updates += 1
        talk.say(letter + b"\n")
        talk.wait_for(lambda _, err: err.count(b"KEYUPDATE") == updates, "the client's key update")

    with Talk(command) as talk:
        wanted = []
        for letter in (b"k", b"K", b"k", b"K"):
            talk.say(b"GET /small.txt " + ask)
            wanted.append(site.small)
            talk.wait_for(lambda out, _: bodies(out) == wanted, f"answer {len(wanted)}")
            update(talk, letter)
        before = len(talk.so_far()[0])
        talk.say(b"GET /large.bin " + ask)
        wanted.append(setting.large.body)
        for turn, letter in enumerate((b"K", b"k", b"K")):
            talk.wait_for(lambda out, _: len(out) > before + (turn << 18), "a part of the large body")
            update(talk, letter)
        talk.wait_for(lambda out, _: len(bodies(out)) == len(wanted), "the large body")
        talk.say(b"GET /small.txt HTTP/1.1\r\nConnection: close" + ask[8:])
        wanted.append(site.small)
        out, err = talk.finish()
    require(bodies(out) == wanted, "the bodies are not those of the files")
    require(b"unexpected eof" not in err, "the connection ended without close_notify")
    with open(trace, encoding="ascii", errors="replace") as file:
        heard = sum(line.startswith("<<<") and "KeyUpdate" in line for line in file)
    # Of several that are asked for before one is sent, one may answer all: RFC 8446 section 4.6.3.
    require(3 <= heard <= 4, f"the server updated its key {heard} times")
    return f"{updates} by the client, {heard} by the server"


def check_half_close(setting, version):
    """close_notify and FIN directly behind the request: the answer is still whole."""
    go = next(client for client in CLIENTS if client.name == "Go")
    go.prepare(setting.work)
    site = setting.site("p256.test")
    got = go.visit(setting.server, site, version, "/large.bin", setting.authority.root, setting.work, "half")
    require(got == [setting.large.sha256] * 2, "the body is not the file")


class Connection:
    """A connection of which more is in hand than Python shows: its TCP side by itself."""

    def __init__(self, setting, version, session=None):
        context = session.context if session else ssl.create_default_context(cafile=setting.authority.root)
        context.minimum_version = context.maximum_version = {
            "1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
        self.site = setting.site("p256.test")
        plain = socket.create_connection(("127.0.0.1", setting.server.port), timeout=30)
        self.tcp = plain.dup()
        self.tls = context.wrap_socket(plain, server_hostname=self.site.host, suppress_ragged_eofs=False,
                                       session=session.kept if session else None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Without a word: Python's TLS sockets send no close_notify.
        self.tls.close()
        self.tcp.close()

    def ask(self, path, more="Connection: close\r\n"):
        self.tls.sendall(f"GET {path} HTTP/1.1\r\nHost: {self.site.host}\r\n{more}\r\n".encode())

    def all(self):
        answer = bytearray()
        while piece := self.tls.recv(1 << 16):
            answer += piece
        return bytes(answer)


def check_end_without_word(setting, version):
    """FIN without close_notify behind a request: what was asked for is given."""
    with Connection(setting, version) as connection:
        connection.ask("/large.bin")
        connection.tcp.shutdown(socket.SHUT_WR)
        require(bodies(connection.all()) == [setting.large.body], "the body is not the file")


def check_gone(setting, version):
    """Clients that are gone without a word in every state leave nothing behind."""
    before = setting.server.counters()
    for path, more in ((None, None), ("/small.txt", ""), ("/large.bin", ""), ("/small.txt", "Unfinished: head")):
        with Connection(setting, version) as connection:
            if path:
                connection.ask(path, more)
            if more == "":
                connection.tls.recv(10)
    if before:
        wait_until(lambda: setting.server.counters()["connections_active"] <= before["connections_active"],
                   "no connection is left")


class Session:
    """A session that is resumed again and again."""

    def __init__(self, setting, version):
        self.setting, self.version = setting, version
        self.context = ssl.create_default_context(cafile=setting.authority.root)
        self.kept = None
        require(not self.visit(), "the first connection was resumed")

    def visit(self):
        with Connection(self.setting, self.version, self) as connection:
            connection.ask("/small.txt")
            require(bodies(connection.all()) == [connection.site.small], "the body is not the file")
            if self.kept is None:
                self.kept = connection.tls.session
            return connection.tls.session_reused

    def resume(self, where):
        before = self.setting.server.counters()
        count = sum(self.visit() for _ in range(RESUMED))
        require(count == RESUMED, f"{where}: {RESUMED - count} of {RESUMED} were not resumed")
        after = self.setting.server.counters()
        grown = after["handshakes_resumed"] - before["handshakes_resumed"]
        require(grown == RESUMED, f"{where}: the server counted {grown} resumed handshakes, not {RESUMED}")


def serving(status):
    return [worker for worker in status["workers"] if worker["state"] == "serving"]


def check_resumption(setting, version):
    """By any worker, by one that replaces a killed one, by the next generation, by the program that replaces this one."""
    server, session = setting.server, Session(setting, version)
    before = {worker["pid"]: worker["requests"] for worker in serving(server.status())}
    session.resume("by any worker")
    after = {worker["pid"]: worker["requests"] for worker in serving(server.status())}
    require(len(after) > 1, "there is one worker only")
    require(all(after[pid] > before[pid] for pid in before), f"a worker served nothing: {before}, then {after}")

    status = server.status()
    for worker in serving(status):
        with open(f"/proc/{worker['pid']}/stat", encoding="ascii") as file:
            parent = int(file.read().rsplit(")", 1)[1].split()[1])
        require(parent == server.process.pid, "a worker is not the server's child")
        os.kill(worker["pid"], signal.SIGKILL)
    killed = {worker["pid"] for worker in serving(status)}

    def replaced():
        now = {worker["pid"] for worker in serving(server.status())}
        return len(now) == len(killed) and not now & killed
    wait_until(replaced, "killed workers are replaced")
    session.resume("by workers that replace killed ones")

    reload = server.reload()
    require(reload["succeeded"], f"the reload failed: {reload['reason']}")
    session.resume("by the next generation")

    old = {worker["pid"] for worker in server.status()["workers"]}
    server.process.send_signal(signal.SIGUSR2)

    def succeeded():
        try:
            return not old & {worker["pid"] for worker in server.status()["workers"]}
        except Failed:
            # Between the two programs nobody answers.
            return False
    wait_until(succeeded, "the program is replaced by itself")
    session.resume("by the next program")
    return f"4 times {RESUMED}"


def run(checks, setting):
    checks.run("TLS 1.3, key updates at any time", check_key_update, setting)
    checks.run("TLS 1.3, half-closed by the client: the answer is whole", check_half_close, setting, "1.3")
    for version in VERSIONS:
        checks.run(f"TLS {version}, EOF without close_notify: the answer is whole", check_end_without_word, setting, version)
        checks.run(f"TLS {version}, clients that are gone leave nothing behind", check_gone, setting, version)
    if setting.server.counters():
        for version in VERSIONS:
            checks.run(f"TLS {version}, resumed by any worker, after kills, by the next generation and program", check_resumption,
                       setting, version)
