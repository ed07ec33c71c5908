"""What all checks share: their list, a server as a child process with its files, and running other programs."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
DEBUG_BINARY = PROJECT / "target/debug/httpd"
# How long anything may take. Generous, as machines are shared: nothing here measures time.
PATIENCE = 30
# Packages by what they bring: a program of the path, or a file.
PACKAGES = {
    "apt-get": "apt", "aria2c": "aria2", "chromium": "chromium", "curl": "curl", "dpkg-scanpackages": "dpkg-dev",
    "git": "git", "htpasswd": "apache2-utils", "mount": "mount", "systemd-socket-activate": "systemd", "wget": "wget",
    "php-cgi": "php-cgi", "zsync": "zsync", "/usr/lib/cgit/cgit.cgi": "cgit", "/usr/share/gitweb/gitweb.cgi": "gitweb",
    "/usr/share/perl5/CGI.pm": "libcgi-pm-perl",
}

CHECKS = []
OPTIONS = None


class Check:
    def __init__(self, name, needs, function):
        self.name, self.needs, self.function = name, needs, function


class Failure(Exception):
    """The server, or what a client made of it, is not as it should be."""


class Skip(Exception):
    """This machine cannot show it."""


class Missing(Skip):
    """A tool is missing that could be installed."""


def check(name, *needs):
    """Adds a function to the checks; `needs` are programs, files, `root`, or `linters`."""
    def add(function):
        CHECKS.append(Check(name, needs, function))
        return function
    return add


def is_there(need):
    return os.path.exists(need) if need.startswith("/") else bool(shutil.which(need))


def prepare(options, checks):
    """Installs what these checks miss, where that is possible."""
    global OPTIONS
    OPTIONS = options
    options.httpd = Path(options.httpd).resolve()
    if not options.httpd.exists():
        sys.exit(f"{options.httpd} does not exist: build it, or say where it is with --httpd")
    options.cache.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    # A proxy of this machine has no business with loopback.
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        os.environ.pop(name, None)
    os.environ["LC_ALL"] = "C.UTF-8"
    needs = {need for check in checks for need in check.needs} | {"curl"}
    missing = sorted({PACKAGES[need] for need in needs if need in PACKAGES and not is_there(need)})
    if "linters" in needs and importlib.util.find_spec("ensurepip") is None:
        missing.append("python3-venv")
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {' '.join(missing)}", flush=True)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
        for command in (["apt-get", "update", "-q"], install):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)


def perform(check):
    """Runs one check in a folder of its own, prints and returns `ok`, `skip` or `FAIL`."""
    began = time.monotonic()
    place = Place()
    try:
        for need in check.needs:
            if need == "root" and os.geteuid() != 0:
                raise Skip("needs root")
            if need not in ("root", "linters") and not is_there(need):
                raise Missing(f"{need} is not installed")
        check.function(place)
        result, reason = "ok", ""
    except Skip as skip:
        is_failure = isinstance(skip, Missing) and os.environ.get("HTTPD_CLIENTS_STRICT") == "1"
        result, reason = "FAIL" if is_failure else "skip", str(skip)
    except Failure as failure:
        result, reason = "FAIL", f"{failure}\n{place.last_words()}"
    except Exception:  # The check itself is broken: no reason to lose the others.
        result, reason = "FAIL", f"{traceback.format_exc()}\n{place.last_words()}"
    finally:
        place.close()
    reason = "".join(f"\n        {line}" for line in reason.rstrip().split("\n")) if reason else ""
    print(f"{result:4}  {check.name}  ({time.monotonic() - began:.1f} s){reason}", flush=True)
    return result


def expect(condition, reason):
    if not condition:
        raise Failure(reason)


def equal(actual, expected, what):
    if actual != expected:
        raise Failure(f"{what}: {shorten(actual)} instead of {shorten(expected)}")


def shorten(value):
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:240]} ... {text[-240:]}"


def until(what, question):
    """Asks until the answer is true; fails when patience ends."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise Failure(f"waited {PATIENCE} s in vain until {what}")
        time.sleep(0.02)


def run(*command, status=0, **keywords):
    """Runs a program to its end; its outcome. A status other than `status` fails, unless that is None."""
    words = [str(word) for word in command]
    keywords.setdefault("stdin", None if "input" in keywords else subprocess.DEVNULL)
    keywords.setdefault("timeout", 120)
    try:
        done = subprocess.run(words, capture_output=True, check=False, **keywords)
    except subprocess.TimeoutExpired as expired:
        raise Failure(f"`{' '.join(words)}` does not end") from expired
    if status is not None and done.returncode != status:
        said = (done.stderr or b"")[-800:] + (done.stdout or b"")[-400:]
        raise Failure(f"`{' '.join(words)}` ended with {done.returncode}: {said.decode(errors='replace')}")
    return done


def bytes_of(size, seed=1):
    """Bytes that look random and are the same everywhere: compression and shifted offsets show."""
    block = bytearray()
    value = seed
    while len(block) < 1 << 16:
        value = (value * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        block += (value >> 16).to_bytes(6, "little")
    block = bytes(block[:1 << 16])
    # Each block begins with its number, so no two are alike.
    pieces = (number.to_bytes(8, "big") + block[8:] for number in range(-(-size // len(block))))
    return b"".join(pieces)[:size]


class Place:
    """A temporary folder with a site, and the servers that were started in it."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="httpd-clients-"))
        # Workers that gave up root must still reach it.
        self.folder.chmod(0o755)
        self.root = self.folder / "root"
        self.root.mkdir()
        self.servers = []
        self.cleanups = []

    def file(self, name, content=b""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def serve(self, site="", top="", listen=None, log='access = "off"', sites="", server="",
              **keywords):
        """Writes a configuration and starts the server: `site` are keys of the site, `top` sections before the
        listeners, `sites` whole sections after it, `server` keys of [server]."""
        config = self.folder / f"httpd{len(self.servers)}.toml"
        config.write_text(self.configuration(site, top, listen, log, sites, server))
        return self.start(["-c", config], config=config, **keywords)

    def configuration(self, site="", top="", listen=None, log='access = "off"', sites="", server=""):
        listen = listen or '[[listen]]\naddress = "127.0.0.1:0"\n'
        control = self.folder / f"control{len(self.servers)}.sock"
        return (f'[server]\nworkers = 2\npin = false\ncontrol = "{control}"\n{server}\n[log]\n{log}\n'
                f'[cache]\nrevalidate = "50ms"\ndir = ""\n{top}\n{listen}\n[[site]]\nroot = "root"\n{site}\n{sites}\n')

    def start(self, words, config=None, wrapper=(), **keywords):
        server = Server([*wrapper, OPTIONS.httpd, *words], self.folder, config, **keywords)
        self.servers.append(server)
        server.ready()
        return server

    def last_words(self):
        return "\n".join(line for server in self.servers for line in server.said[-12:])

    def close(self):
        for server in self.servers:
            server.close()
        for cleanup in reversed(self.cleanups):
            cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)


class Server:
    """A running httpd, ended by its own process id."""

    def __init__(self, words, folder, config, stdout=subprocess.DEVNULL, **keywords):
        self.config, self.said, self.urls = config, [], []
        words = [str(word) for word in words]
        self.process = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout,
                                        stderr=subprocess.PIPE, **keywords)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.said.append(line.decode(errors="replace").rstrip("\n"))

    @property
    def pid(self):
        """Of the supervisor, also where a wrapper started it: the wrappers used here exec."""
        return self.process.pid

    @property
    def url(self):
        return self.urls[0]

    @property
    def port(self):
        return urllib.parse.urlsplit(self.url).port

    def ready(self):
        line = self.wait_for("serving ")
        words = line.replace(",", " ").split()
        self.urls = [word.rstrip("/") for word in words if "://" in word or word.startswith("unix:")]

    def wait_for(self, text, after=0):
        """The first line after the first `after` ones that contains the text."""
        def found():
            lines = [line for line in self.said[after:] if text in line]
            if not lines and self.process.poll() is not None:
                self.reader.join(5)
                if not any(text in line for line in self.said[after:]):
                    raise Failure(f"the server ended with {self.process.returncode} and did not say {text!r}")
            return lines and lines[0]
        return until(f"the server says {text!r}", found)

    def signal(self, number):
        os.kill(self.pid, number)

    def status(self):
        done = run(OPTIONS.httpd, "status", "--json", "-c", self.config)
        return json.loads(done.stdout)

    def counter(self, name):
        return self.status()["counters"][name]

    def workers(self):
        return [worker["pid"] for worker in self.status()["workers"] if worker["pid"]]

    def ended(self):
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired as expired:
            raise Failure("the server does not end") from expired

    def close(self):
        if self.process.poll() is None:
            # Twice: at once.
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(5)
        self.process.stderr.close()


class Answer:
    """What curl received: the last head, and the body."""

    def __init__(self, heads, body):
        lines = heads.decode("latin-1").split("\r\n\r\n")[-2 if heads.endswith(b"\r\n\r\n") else -1].split("\r\n")
        self.line = lines[0]
        self.status = int(self.line.split()[1])
        self.fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.fields[name.strip().lower()] = value.strip()
        self.body = body

    def __repr__(self):
        return f"{self.line} {self.fields} {shorten(self.body)}"


def curl(place, *words, status=0):
    """One request by curl; an Answer."""
    heads, body = place.folder / "curl.heads", place.folder / "curl.body"
    for path in (heads, body):
        path.unlink(missing_ok=True)
    run("curl", "-q", "-sS", "-g", "--max-time", str(PATIENCE), "-D", heads, "-o", body, *words, status=status)
    return Answer(heads.read_bytes(), body.read_bytes() if body.exists() else b"")


def raw(port, request, host="127.0.0.1"):
    """Sends bytes and returns all that comes until the server closes."""
    with socket.create_connection((host, port), PATIENCE) as connection:
        connection.sendall(request)
        pieces = []
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    return b"".join(pieces)
