"""Called by tests/balancer/run in namespaces of its own: two httpd, one haproxy, clients, and what must hold of them."""

import collections
import hashlib
import http.client
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

WORK = Path(sys.argv[1])
HTTPD = os.path.abspath(os.environ["HTTPD"])
BALANCER, MACHINES = "10.0.0.10", {"a": "10.0.0.11", "b": "10.0.0.12"}
CLIENT = "10.0.0.99"
# Anything here takes well under a second when it works.
PATIENCE_SECONDS = 20
ROUNDS = 2


def main():
    network()
    files = tree()
    servers = {name: Server(name, address) for name, address in MACHINES.items()}
    for server in servers.values():
        server.start()
    haproxy = Haproxy()
    same_validators(files)
    resumption_across_machines()
    load = Load(files)
    for _ in range(ROUNDS):
        for server in servers.values():
            load.step = f"reload of {server.name}"
            server.reload()
            time.sleep(0.5)
    for server in servers.values():
        load.step = f"restart of {server.name}"
        haproxy.take_out(server.name)
        server.stop()
        server.start()
        haproxy.take_in(server.name)
    counts = load.finish()
    # One that ends without a word is noticed; what was on its way to it then may be lost.
    servers["a"].stop()
    wait_for("the balancer misses a", lambda: not haproxy.is_up("a"))
    for _ in range(4):
        fetch("/index.html")
    servers["a"].start()
    wait_for("a is back", lambda: haproxy.is_up("a"))
    clients_are_known(servers)
    for server in servers.values():
        server.stop()
    print(f"balancer: {counts['served']} requests, {counts['again']} of them a second time on a new connection, none failed")


def network():
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in [BALANCER, CLIENT, *MACHINES.values()]:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)


def tree():
    """The same files twice, as a deploy to two machines leaves them: other inodes, other times."""
    files = {"/index.html": b"<!doctype html><title>t</title>" * 40, "/a.js": b"let a = 1;\n" * 3000, "/b.bin": os.urandom(3 << 20)}
    for age, name in enumerate(MACHINES):
        root = WORK / name / "root"
        root.mkdir(parents=True)
        for path, content in files.items():
            (root / path[1:]).write_bytes(content)
            os.utime(root / path[1:], (1_700_000_000 + 1000 * age,) * 2)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 90 -subj /CN=www.example.org".split()
    names = ["-addext", "subjectAltName=DNS:www.example.org"]
    output = ["-keyout", WORK / "site.key", "-out", WORK / "site.pem"]
    subprocess.run(["openssl", "req", "-x509", *key, *names, *output], check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["openssl", "rand", "-out", WORK / "ticket.key", "80"], check=True)
    for name in ["site.key", "ticket.key"]:
        os.chmod(WORK / name, 0o600)
    return files


class Server:
    """One machine."""

    def __init__(self, name, address):
        self.name, self.folder = name, WORK / name
        text = Path("examples/balancer/httpd.toml").read_text().replace("10.0.0.11", address)
        text = text.replace("/srv/www/current", str(self.folder / "root")).replace("/etc/httpd", str(WORK))
        own = f'[server]\nworkers = 1\npin = false\nuser = "www-data"\ncontrol = "{self.folder}/control.sock"\n'
        self.config = self.folder / "config.toml"
        self.config.write_text(f'{own}\n[log]\naccess = "{self.folder}/access.log"\n\n{text}')
        os.chmod(self.folder, 0o755)

    def start(self):
        log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen([HTTPD, "-c", self.config], stderr=log, stdout=log)
        wait_for(f"{self.name} serves", lambda: self.status() is not None)

    def status(self):
        command = [HTTPD, "status", "-c", self.config, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        return done.stdout if done.returncode == 0 else None

    def lines(self, word):
        return (self.folder / "log").read_text().count(word)

    def reload(self):
        before = self.lines("serving http")
        self.process.send_signal(1)
        wait_for(f"{self.name} reloads", lambda: self.lines("serving http") > before)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(PATIENCE_SECONDS * 2) == 0, f"{self.name} ends with {self.process.returncode}"


class Haproxy:
    """The balancer."""

    def __init__(self):
        self.admin = WORK / "admin.sock"
        text = Path("examples/balancer/haproxy.cfg").read_text().replace("/run/haproxy/admin.sock", str(self.admin))
        (WORK / "haproxy.cfg").write_text(text)
        subprocess.run(["haproxy", "-c", "-q", "-f", WORK / "haproxy.cfg"], check=True)
        log = open(WORK / "haproxy.log", "ab")
        self.process = subprocess.Popen(["haproxy", "-db", "-f", WORK / "haproxy.cfg"], stdout=log, stderr=log)
        wait_for("the balancer", lambda: self.is_up("a") and self.is_up("b"))

    def say(self, line):
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(PATIENCE_SECONDS)
            admin.connect(str(self.admin))
            admin.sendall(f"{line}\n".encode())
            return b"".join(iter(lambda: admin.recv(65536), b"")).decode()

    def servers(self, name):
        """Sessions and state of a machine, once for each backend."""
        lines = self.say("show stat").splitlines()
        keys = lines[0].lstrip("# ").split(",")
        rows = [dict(zip(keys, line.split(","))) for line in lines[1:]]
        return [row for row in rows if row.get("svname") == name]

    def is_up(self, name):
        return self.admin.exists() and all(row["status"].startswith("UP") for row in self.servers(name))

    def take_out(self, name):
        for backend in ["http", "https"]:
            self.say(f"set server {backend}/{name} state drain")
        # Who was just handed over has not said a word yet, and a server that stops waits for him only a moment.
        wait_for(f"{name} is left", lambda: all(row["scur"] == "0" for row in self.servers(name)))

    def take_in(self, name):
        for backend in ["http", "https"]:
            self.say(f"set server {backend}/{name} state ready")
        wait_for(f"{name} is back", lambda: self.is_up(name))


def context():
    made = ssl.create_default_context(cafile=WORK / "site.pem")
    made.check_hostname = True
    return made


class Secure(http.client.HTTPConnection):
    """HTTPS to the balancer, which has no name here."""

    def connect(self):
        super().connect()
        self.sock = self.trust.wrap_socket(self.sock, server_hostname="www.example.org")


def connection(secure, host=BALANCER, source=CLIENT):
    kind = Secure if secure else http.client.HTTPConnection
    made = kind(host, 443 if secure else 80, timeout=PATIENCE_SECONDS, source_address=(source, 0))
    made.trust = context() if secure else None
    return made


def fetch(path):
    one = connection(False)
    one.request("GET", path, headers={"Connection": "close"})
    answer = one.getresponse()
    return answer, answer.read()


def same_validators(files):
    """What one machine gave, another confirms: ETags come from contents."""
    for path in files:
        seen = collections.Counter()
        for _ in range(6):
            answer, body = fetch(path)
            assert (answer.status, body) == (200, files[path]), f"{path}: {answer.status}, {body[:200]}"
            # Bodies beyond cache.max_file are not held in memory, and go by facts of the file.
            if len(files[path]) <= 1 << 20:
                seen[answer.headers["ETag"]] += 1
        assert len(seen) <= 1, (path, seen)


def resumption_across_machines():
    """A session of one machine is resumed on the other."""
    tls, session, reused = context(), None, 0
    for _ in range(6):
        plain = socket.create_connection((BALANCER, 443), PATIENCE_SECONDS, source_address=(CLIENT, 0))
        with tls.wrap_socket(plain, server_hostname="www.example.org", session=session) as secure:
            reused += secure.session_reused
            secure.sendall(b"GET / HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n")
            while secure.recv(65536):
                pass
            session = secure.session
    assert reused == 5, f"{reused} of 5 sessions were resumed"


class Load:
    """Clients that check every byte, and count."""

    def __init__(self, files):
        self.files, self.counts, self.failures, self.ending = files, collections.Counter(), [], threading.Event()
        self.step = "start"
        jobs = [(secure, path) for secure in [False, True] for path in files] * 2
        self.threads = [threading.Thread(target=self.work, args=job) for job in jobs]
        for thread in self.threads:
            thread.start()

    def work(self, secure, path):
        expected = hashlib.sha256(self.files[path]).digest()
        one, used = None, 0
        while not self.ending.is_set() and len(self.failures) < 5:
            try:
                # Every so often a new connection, as other clients would.
                if one is None or used == 20:
                    one, used = connection(secure), 0
                used += 1
                one.request("GET", path, headers={"Host": "www.example.org"})
                answer = one.getresponse()
                body = answer.read()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                # RFC 9112 section 9.3.1: a connection that was kept may close while a request is under way; nothing of
                # an answer came, so the client asks again, once, on a new one.
                if used > 1:
                    self.counts["again"] += 1
                    one = None
                    continue
                self.failures.append(f"{self.step}: {path}: {error!r} on a new connection")
                one = None
                continue
            except Exception as error:
                self.failures.append(f"{self.step}: {path}: {error!r}")
                one = None
                continue
            if answer.status != 200 or hashlib.sha256(body).digest() != expected:
                self.failures.append(f"{self.step}: {path}: {answer.status}, {len(body)} bytes")
            self.counts["served"] += 1
            if answer.will_close:
                one = None
            time.sleep(0.01)

    def finish(self):
        self.ending.set()
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
        assert not self.failures, self.failures
        assert self.counts["served"] > 500, self.counts
        return self.counts


def clients_are_known(servers):
    """The log names the client, whom only the balancer has seen; and both machines served."""
    for server in servers.values():
        lines = (server.folder / "access.log").read_text().splitlines()
        assert len(lines) > 100, f"{server.name} served {len(lines)} requests"
        strangers = [line for line in lines if not line.startswith(f"{CLIENT} ")]
        assert not strangers, strangers[:3]


def wait_for(what, holds):
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > end:
            for log in WORK.rglob("*log"):
                print(f"--- {log}\n{log.read_text()[-3000:]}", file=sys.stderr)
            raise SystemExit(f"in vain: {what}")
        time.sleep(0.05)


main()
