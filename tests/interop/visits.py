"""Visits: every client fetches a body twice, over a new session and over a resumed one, and says so itself.

The programs under clients/ take the authority's file as their argument and read lines `PORT NAME VERSION PATH`. For each they
print two lines of `key=value`, one per connection: tls, resumed, alpn, certificate (SHA-256), status, sha256 (of the body);
`error=` where something failed; and `end`. The other clients are command line tools whose reports are read here.
"""

import hashlib
import os
import re
import sys

from kit import HERE, TOOL_SECONDS, Failed, Talk, find, output, require

VERSIONS = ("1.2", "1.3")


def request(site, path):
    return f"GET {path} HTTP/1.1\r\nHost: {site.host}\r\nConnection: close\r\n\r\n".encode()


def bodies(out):
    """The bodies of the whole answers in what a tool printed."""
    found, at = [], 0
    while (start := out.find(b"HTTP/1.1 ", at)) >= 0 and (end := out.find(b"\r\n\r\n", start)) >= 0:
        head, end = out[start:end + 2], end + 4
        length = re.search(rb"\r\ncontent-length: (\d+)\r\n", head, re.IGNORECASE)
        require(head.startswith(b"HTTP/1.1 200 ") and length, f"answered with {head!r}")
        at = end + int(length[1])
        if len(out) < at:
            break
        found.append(out[end:at])
    return found


def demand(text, pattern, what):
    found = re.search(pattern, text)
    require(found, f"{what} is not in its report")
    return found


class Client:
    """What the clients have in common, where they do not say otherwise."""
    # The versions with which a large body takes it so long that only --full has it.
    slow_for = ()
    kinds = ("p256", "p384", "rsa", "ed25519")

    def handshakes(self, _server, _version):
        """How many handshakes are full, how many are resumed."""
        return 1, 1


class Curl(Client):
    name = "curl"

    def prepare(self, _work):
        self.path = find("curl")

    def visit(self, server, site, version, path, authority, work):
        """Both connections in one process, since curl keeps its sessions in memory. Gives both bodies."""
        files = [f"{work}/curl-{turn}" for turn in range(2)]
        url = f"https://{site.host}:{server.port}{path}"
        err = output([
            self.path, "-sSvf", "--http1.1", "--cacert", authority, "--resolve", f"{site.host}:{server.port}:127.0.0.1",
            f"--tlsv{version}", "--tls-max", version, "-H", "Connection: close",
            "-o", files[0], url, "-o", files[1], url])[1].decode()
        used = re.findall(r"SSL connection using TLSv(\S+)", err)
        require(used == [version] * 2, f"connected with {used}")
        resumed = self.handshakes(server, version)[1]
        require(err.count("SSL re-using session ID") == resumed, "the second connection did not resume the first one's session")
        require(err.count("ALPN: server accepted http/1.1") == 2, "ALPN was not http/1.1")
        return [read(file) for file in files]

    def handshakes(self, server, version):
        # With TLS 1.2 curl wants no tickets, only what a server keeps in its memory.
        return (1, 1) if version == "1.3" or server.has_session_cache else (2, 0)


class Openssl(Client):
    name = "openssl s_client"

    def prepare(self, _work):
        self.path = find("openssl")

    def visit(self, server, site, version, path, authority, work):
        session, got = f"{work}/openssl.session", []
        for turn, kept in enumerate((["-sess_out", session], ["-sess_in", session])):
            command = s_client(self.path, server, site.host, authority, version) + kept
            with Talk(command) as talk:
                talk.say(request(site, path))
                out, err = talk.finish()
            text = (out + err).decode(errors="replace")
            require("Verify return code: 0 (ok)" in text, "the certificate was not verified")
            word = "Reused" if turn else "New"
            demand(text, rf"(?m)^{word}, TLSv{version}, Cipher is", f"'{word}, TLSv{version}'")
            require("ALPN protocol: http/1.1" in text, "ALPN was not http/1.1")
            require("unexpected eof" not in text, "the connection ended without close_notify")
            got += bodies(out)
        return got


def s_client(path, server, name, authority, version, *more):
    who = ["-servername", name, "-verify_hostname", name] if name else ["-noservername"]
    return [path, "s_client", "-connect", f"127.0.0.1:{server.port}", *who, "-CAfile", authority, "-verify_return_error",
            f"-tls1_{version[-1]}", "-alpn", "http/1.1", "-ign_eof", *more]


class Gnutls(Client):
    name = "gnutls-cli"
    # It writes every byte by itself.
    slow_for = ("1.2",)

    def prepare(self, _work):
        self.path = find("gnutls-cli")

    def visit(self, server, site, version, path, authority, _work):
        """The tool hangs up after the first handshake when it is to resume, so that visit is made by itself."""
        got = []
        for turn, more in enumerate(([], ["--resume", "--waitresumption"])):
            with Talk([
                    self.path, "-p", str(server.port), "127.0.0.1", "--x509cafile", authority, "--sni-hostname", site.host,
                    "--verify-hostname", site.host, "--alpn", "http/1.1",
                    "--priority", f"NORMAL:-VERS-ALL:+VERS-TLS{version}", *more]) as talk:
                # Said before the handshake that it is for, it would be lost with the first connection.
                talk.wait_for(lambda out, _: b"- Simple Client Mode:" in out, "the prompt")
                talk.say(request(site, path))
                out, err = talk.finish()
            text = (out + err).decode(errors="replace")
            require("The certificate is trusted" in text, "the certificate was not verified")
            demand(text, rf"Description: \(TLS{version[:3]}", f"TLS {version[:3]}")
            # Of TLS 1.2 only; 1.3 has it built in.
            require(version != "1.2" or "extended master secret" in text, "there is no extended master secret")
            require("%NO_SESSION_HASH" not in version or "extended master secret" not in text, "there is one")
            require(("*** This is a resumed session" in text) == bool(turn), "the second session was not the first, resumed")
            require("Application protocol: http/1.1" in text, "ALPN was not http/1.1")
            got += bodies(out)
        return got

    def handshakes(self, _server, _version):
        return 2, 1


class Tstclnt(Client):
    # NSS knows no Ed25519 certificates.
    name, kinds = "NSS tstclnt", ("p256", "p384", "rsa")

    def prepare(self, work):
        self.path, certutil = find("tstclnt"), find("certutil")
        self.trust = f"{work}/nss"
        os.mkdir(self.trust)
        output([certutil, "-N", "-d", self.trust, "--empty-password"])
        output([certutil, "-A", "-d", self.trust, "-n", "root", "-t", "C,,", "-i", f"{work}/authority/root.pem"])

    def visit(self, server, site, version, path, _authority, work):
        ask = f"{work}/nss.request"
        with open(ask, "wb") as file:
            file.write(request(site, path))
        out, err = output([
            self.path, "-h", "127.0.0.1", "-p", str(server.port), "-a", site.host, "-d", self.trust, "-u", "-G", "-v",
            "-V", f"tls{version}:tls{version}", "-L", "2", "-A", ask])
        text = err.decode(errors="replace")
        number = {"1.2": "3.3", "1.3": "3.4"}[version]
        require(text.count(f"SSL version {number} using") == 2, f"did not connect twice with TLS {version}")
        require(re.findall(r"(\d+) stateless resumes", text)[-1:] == ["1"], "the second session was not the first, resumed")
        return bodies(out)


class Program(Client):
    """A program of clients/."""
    def __init__(self, name, build):
        self.name, self.build = name, build

    def prepare(self, work):
        self.command = self.build(work)

    def visit(self, server, site, version, path, authority, _work, *more):
        line = " ".join([str(server.port), site.host, version, path, *more]) + "\n"
        with self.started(authority) as talk:
            talk.say(line.encode())
            talk.process.stdin.close()
            out = talk.finish()[0].decode()
        return self.judge(site, version, out)

    def started(self, authority):
        return Talk([*self.command, authority], seconds=TOOL_SECONDS)

    def judge(self, site, version, out):
        lines = [line for line in out.splitlines() if line != "end"]
        for line in lines:
            require(not line.startswith("error="), f"connection {lines.index(line) + 1}: {line[6:]}")
        require(len(lines) == 2, f"it printed {out!r}")
        facts = [dict(word.split("=", 1) for word in line.split()) for line in lines]
        wanted = {"tls": version, "alpn": "http/1.1", "status": "200", "certificate": site.certificates[0].fingerprint()}
        for turn, fact in enumerate(facts):
            require(fact["resumed"] == ("true" if turn else "false"), f"connection {turn + 1}: resumed={fact['resumed']}")
            for key, value in wanted.items():
                unknown = turn and fact[key] == "-"
                require(unknown or fact[key] == value, f"connection {turn + 1}: {key} is {fact[key]}, not {value}")
        return [fact["sha256"] for fact in facts]


def build_go(name):
    def build(work):
        output([find("go"), "build", "-o", f"{work}/go-{name}", f"{HERE}/clients/{name}.go"], seconds=300)
        return [f"{work}/go-{name}"]
    return build


def build_java(work):
    output([find("javac"), "-d", work, f"{HERE}/clients/Client.java"])
    # On few cores the machine's own threads cost more than they save.
    return [find("java"), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", work, "Client"]


CLIENTS = [
    Curl(), Openssl(), Gnutls(), Tstclnt(),
    Program("Go", build_go("client")),
    Program("Java", build_java),
    Program("Node", lambda _work: [find("node"), f"{HERE}/clients/client.js"]),
    Program("Python", lambda _work: [sys.executable, "-I", f"{HERE}/clients/client.py"]),
]


def check(client, server, site, version, path, body, authority, work):
    """Both visits of a client, and that the server counted them as what they were."""
    before = server.counters()
    got = client.visit(server, site, version, path, authority, work)
    require(len(got) == 2, f"{len(got)} whole answers, not two")
    for turn, one in enumerate(got):
        if isinstance(one, bytes):
            one = hashlib.sha256(one).hexdigest()
        require(one == hashlib.sha256(body).hexdigest(), f"connection {turn + 1}: the body is not the file")
    counted(server, before, *client.handshakes(server, version))


def counted(server, before, full, resumed):
    if before is None:
        return
    after = server.counters()
    grown = {name: after[name] - before[name] for name in ("handshakes_full", "handshakes_resumed", "handshakes_failed")}
    wanted = {"handshakes_full": full, "handshakes_resumed": resumed, "handshakes_failed": 0}
    if grown != wanted:
        raise Failed(f"the server counted {grown}, not {wanted}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def run(checks, setting):
    authority, work = setting.authority.root, setting.work
    for client in CLIENTS:
        try:
            client.prepare(work)
        except Failed as error:
            checks.run(f"{client.name} is there", fail, error)
            continue
        for version in VERSIONS:
            for kind in client.kinds:
                site = setting.site(f"{kind}.test")
                checks.run(f"{client.name}, TLS {version}, {kind}, new and resumed", check, client, setting.server, site,
                           version, "/small.txt", site.small, authority, work)
            if version in client.slow_for and not setting.full:
                continue
            site = setting.site("p256.test")
            checks.run(f"{client.name}, TLS {version}, {len(setting.large.body)} bytes, new and resumed", check, client,
                       setting.server, site, version, "/large.bin", setting.large.body, authority, work)


def fail(error):
    raise error
