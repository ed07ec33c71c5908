"""What an operator does: start, check, ask, reload, stop; who may run it, and where it listens."""

import json
import os
import pwd
import re
import signal
import socket
import subprocess
import threading

import kit
from kit import check, curl, equal, expect, run, until


@check("the example configuration runs as it is", "curl")
def example(place):
    text = (kit.PROJECT / "config.example.toml").read_text()
    for port in ("8080", "8443"):
        expect(f'"127.0.0.1:{port}"' in text, f"the example does not listen on {port}")
        text = text.replace(f'"127.0.0.1:{port}"', '"127.0.0.1:0"')
    # From a copy, with other ports and a control socket of its own: the machine may be serving on these.
    config = place.folder / "config.example.toml"
    config.write_text(text.replace("[server]\n", f'[server]\ncontrol = "{place.folder}/control.sock"\n', 1))
    (place.folder / "examples").symlink_to(kit.PROJECT / "examples")
    server = place.start(["-c", config], config=config)
    plain, secure = server.urls
    expect("serving this page" in curl(place, plain).body.decode(), "the page is another")
    expect("serving this page" in curl(place, "-k", secure).body.decode(), "the page is another by https")
    equal(curl(place, f"{plain}/nope").status, 404, "a page that is not there")
    # Every link of the page leads somewhere; the large file is made by examples/run.
    page = curl(place, plain).body.decode()
    for link in sorted(set(re.findall(r'(?:href|src)="(/[^"#]*)"', page)) - {"/large.bin", "/no-such-page"}):
        equal(curl(place, plain + link).status, 200, f"the link {link}")


@check("--root serves without a configuration", "curl")
def without_configuration(place):
    place.file("index.html", "by --root")
    port = free_port()
    environment = os.environ | {"XDG_RUNTIME_DIR": str(place.folder)}
    server = place.start(["--root", place.root, "--http-port", port, "--workers", "1"], env=environment)
    equal(curl(place, server.url.replace("0.0.0.0", "127.0.0.1")).body, b"by --root", "the page")
    again = subprocess.run([kit.OPTIONS.httpd, "--root", place.root, "--http-port", str(port)], capture_output=True,
                           timeout=kit.PATIENCE, check=False, env=environment)
    equal(again.returncode, 1, "a second server on the same port")
    expect(str(port) in again.stderr.decode(), f"its reason: {again.stderr.decode()}")


@check("wrong command lines and configurations: exit codes and reasons")
def refusals(place):
    good = place.folder / "good.toml"
    good.write_text(place.configuration())
    broken = place.folder / "broken.toml"
    broken.write_text('[server]\nwokers = 2\n[[listen]]\naddress = "127.0.0.1:0"\n[[site]]\nroot = "nowhere"\nlist = 1\n')
    httpd = kit.OPTIONS.httpd
    expect(b"fine" in run(httpd, "-t", "-c", good).stdout, "a good configuration")
    for words, status in ((["-t", "-c", broken], 1), (["-c", broken], 78)):
        said = run(httpd, *words, status=status).stderr.decode()
        for part in ("broken.toml:2", "`workers`", "nowhere", "broken.toml:7"):
            expect(part in said, f"{part} is missing from: {said}")
    for words in ([], ["--nonsense"], ["-c"], ["-c", good, "--root", "."], ["status", "extra"]):
        run(httpd, *words, status=2)
    said = run(httpd, "-c", place.folder / "missing.toml", status=None)
    expect(said.returncode == 78 and b"missing.toml" in said.stderr, f"a missing file: {said}")
    said = run(httpd, "status", "-c", good, status=1).stderr.decode()
    expect(said.strip(), "status of a server that does not run says nothing")
    expect(b"Usage" in run(httpd, "--help").stdout and b"httpd" in run(httpd, "version").stdout, "help and version")


@check("status: for people and for programs", "curl")
def status(place):
    place.file("index.html", "x")
    server = place.serve(listen='[[listen]]\naddress = "127.0.0.1:0"\n[[listen]]\naddress = "127.0.0.1:0"\ntls = true\n',
                         sites="[[site.certificate]]\nself_signed = true\n")
    for _ in range(7):
        curl(place, server.url)
    curl(place, "-k", server.urls[1])
    until("requests are counted", lambda: server.counter("requests") >= 8)
    facts = server.status()
    equal((facts["state"], facts["generation"], len(facts["workers"])), ("serving", 1, 2), "what runs")
    equal(facts["counters"]["responses_2xx"], 8, "answers")
    text = run(kit.OPTIONS.httpd, "status", "-c", server.config).stdout.decode()
    for word in ("serving", *server.urls, "connections", "localhost", "tls"):
        expect(word in text, f"{word!r} is missing from:\n{text}")
    expect("{" not in text, f"text for programs among text for people:\n{text}")
    expect(facts["ring_features"], f"no feature of the ring is named: {facts}")
    mode = (place.folder / "control0.sock").stat().st_mode & 0o777
    expect(mode & 0o007 == 0, f"anybody may speak to the control socket: {mode:o}")


@check("HUP: a new site, a broken file, a flipped root; nothing is lost meanwhile", "curl")
def reload(place):
    place.file("index.html", "one")
    server = place.serve()
    stop, wrong, count = threading.Event(), [], [0]

    def ask():
        while not stop.is_set():
            with socket.create_connection(("127.0.0.1", server.port), kit.PATIENCE) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                try:
                    answer = b"".join(iter(lambda: connection.recv(65536), b""))
                except OSError as error:
                    answer = f"{error} after {count[0]} requests".encode()
            count[0] += 1
            if not answer.startswith(b"HTTP/1.1 200 ") or not answer.endswith((b"one", b"two")):
                wrong.append(answer)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        (place.folder / "other").mkdir()
        (place.folder / "other/index.html").write_text("two")
        text = server.config.read_text()
        for turn in range(5):
            said = len(server.said)
            server.config.write_text(text.replace('root = "root"', 'root = "other"') if turn % 2 == 0 else text)
            server.signal(signal.SIGHUP)
            server.wait_for("serving ", after=said)
            equal(curl(place, server.url).body, b"two" if turn % 2 == 0 else b"one", "the new site")
        said = len(server.said)
        server.config.write_text(text + "\nnonsense = 1\n")
        server.signal(signal.SIGHUP)
        server.wait_for("nonsense", after=said)
        equal(curl(place, server.url).body, b"two", "the old site after a broken configuration")
        facts = server.status()
        expect(facts["last_reload"] and not facts["last_reload"]["succeeded"], f"status: {facts['last_reload']}")
    finally:
        stop.set()
        asking.join()
    expect(not wrong, f"{len(wrong)} of {count[0]} requests went wrong: {wrong[:2]}")
    expect(count[0] > 10, f"only {count[0]} requests were made")


@check("TERM drains: a download ends, new connections do not begin; exit status 0", "curl")
def drain(place):
    data = kit.bytes_of(20_000_000)
    place.file("big.bin", data)
    server = place.serve()
    copy = place.folder / "copy"
    client = subprocess.Popen(["curl", "-q", "-sS", "--limit-rate", "8M", "-o", copy, f"{server.url}/big.bin"])
    until("the download has begun", lambda: copy.exists() and copy.stat().st_size > 0)
    server.signal(signal.SIGTERM)
    equal(client.wait(kit.PATIENCE), 0, "curl's exit status")
    expect(copy.read_bytes() == data, "the download was cut")
    equal(server.ended(), 0, "httpd's exit status")
    run("curl", "-q", "-sS", server.url, status=7)


@check("USR2: the program is replaced while it serves", "curl")
def replaced(place):
    place.file("index.html", "x")
    server = place.serve()
    workers = server.workers()
    with socket.create_connection(("127.0.0.1", server.port), kit.PATIENCE) as old:
        server.signal(signal.SIGUSR2)
        until("the program is another", lambda: is_replaced(server, workers))
        equal(curl(place, server.url).body, b"x", "a new connection")
        old.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        expect(old.recv(65536).startswith(b"HTTP/1.1 200"), "a connection of the old program")
    server.signal(signal.SIGTERM)
    equal(server.ended(), 0, "exit status")


def is_replaced(server, workers):
    try:
        return len(set(server.workers()) - set(workers)) == 2
    except kit.Failure:
        # Who asks in the very moment of the exchange is not answered.
        return False


@check("a killed worker is replaced; the supervisor killed, workers end", "curl")
def killed(place):
    place.file("index.html", "x")
    server = place.serve()
    before = server.workers()
    os.kill(before[0], signal.SIGKILL)
    server.wait_for("SIGKILL")
    until("there are two workers again", lambda: len(set(server.workers()) - {before[0]}) == 2)
    for _ in range(20):
        equal(curl(place, server.url).status, 200, "after that")
    workers = server.workers()
    server.signal(signal.SIGKILL)
    server.ended()
    for worker in workers:
        until(f"worker {worker} has ended", lambda pid=worker: not is_alive(pid))


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@check("workers give up root, and everything that comes with it", "root", "curl")
def rights(place):
    place.file("index.html", "x")
    secret = place.file("secret.txt", "secret")
    secret.chmod(0o600)
    server = place.serve(top="")
    wanted = pwd.getpwnam("www-data").pw_uid
    for worker in server.workers():
        with open(f"/proc/{worker}/status", encoding="ascii") as file:
            facts = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        equal(set(facts["Uid"].split()), {str(wanted)}, "its users")
        equal(set(facts["CapEff"]), {"0"}, "its capabilities")
        equal(facts["NoNewPrivs"], "1", "no new privileges")
        expect("0" not in facts["Groups"].split(), f"its groups: {facts['Groups']}")
    equal(curl(place, f"{server.url}/secret.txt").status, 403, "a file that only root may read")


@check("listeners: IPv6, a unix socket with its mode, a stale socket file", "curl")
def listeners(place):
    place.file("index.html", "x")
    stale = place.folder / "http.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(stale))
    listen = f'[[listen]]\naddress = "unix:{stale}"\nmode = "0600"\n'
    if has_ipv6():
        listen += '[[listen]]\naddress = "[::1]:0"\n'
    server = place.serve(listen=listen)
    equal(curl(place, "--unix-socket", stale, "http://localhost/").body, b"x", "over a unix socket")
    equal(stale.stat().st_mode & 0o777, 0o600, "its mode")
    if has_ipv6():
        answer = curl(place, next(url for url in server.urls if "[::1]" in url))
        equal(answer.body, b"x", "over IPv6")
    server.signal(signal.SIGTERM)
    equal(server.ended(), 0, "exit status")
    expect(not stale.exists(), "the socket file is left behind")


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


@check("socket activation by systemd-socket-activate", "systemd-socket-activate", "curl")
def activation(place):
    place.file("index.html", "activated")
    port = free_port()
    config = place.folder / "httpd.toml"
    config.write_text(place.configuration(listen=f'[[listen]]\naddress = "127.0.0.1:{port}"\n'))
    # It starts the server at the first connection, which is answered too.
    server = kit.Server(["systemd-socket-activate", "-l", f"127.0.0.1:{port}", kit.OPTIONS.httpd, "-c", config],
                        place.folder, config)
    place.servers.append(server)
    until("it listens", lambda: any("Listening" in line for line in server.said))
    equal(curl(place, f"http://127.0.0.1:{port}/").body, b"activated", "the page")
    # Answered by a worker that serves before the supervisor has heard that all do.
    until("it serves", lambda: server.status()["state"] == "serving")
    facts = server.status()
    equal([listener["origin"] for listener in facts["listeners"]], ["activation"], "who opened the listener")
    server.signal(signal.SIGHUP)
    until("it has reloaded", lambda: server.status()["generation"] == 2)
    equal(curl(place, f"http://127.0.0.1:{port}/").body, b"activated", "the page after a reload")


@check("PROXY protocol: believed from those trusted, refused from others", "curl")
def proxy_protocol(place):
    place.file("index.html", "x")
    log = place.folder / "access.log"
    listen = ('[[listen]]\naddress = "127.0.0.1:0"\nproxy_protocol = true\ntrusted = ["127.0.0.0/8"]\n'
              '[[listen]]\naddress = "127.0.0.1:0"\nproxy_protocol = true\ntrusted = ["192.0.2.1"]\n')
    server = place.serve(listen=listen, log=f'access = "{log}"\nformat = "json"')
    trusting, other = server.urls
    equal(curl(place, "--haproxy-protocol", trusting).status, 200, "curl --haproxy-protocol")
    port = server.port
    request = b"GET /%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = kit.raw(port, b"PROXY TCP4 198.51.100.7 192.0.2.9 1234 80\r\n" + request % b"one")
    expect(answer.startswith(b"HTTP/1.1 404"), f"version 1: {answer[:200]}")
    binary = (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + socket.inet_aton("198.51.100.8") + socket.inet_aton("192.0.2.9")
              + b"\x04\xd2\0\x50")
    answer = kit.raw(port, binary + request % b"two")
    expect(answer.startswith(b"HTTP/1.1 404"), f"version 2: {answer[:200]}")
    binary = (b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24" + socket.inet_pton(socket.AF_INET6, "2001:db8::7")
              + socket.inet_pton(socket.AF_INET6, "2001:db8::1") + b"\x04\xd2\0\x50")
    answer = kit.raw(port, binary + request % b"three")
    expect(answer.startswith(b"HTTP/1.1 404"), f"version 2 with IPv6: {answer[:200]}")

    def clients():
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        found = {line["target"]: line["client"] for line in lines if "target" in line}
        return found if len(found) >= 4 else None
    equal(until("the log has the requests", clients),
          {"/": "127.0.0.1", "/one": "198.51.100.7", "/two": "198.51.100.8", "/three": "2001:db8::7"}, "clients")
    answer = refused(trusting, request % b"")
    expect(b" 200 " not in answer, f"a connection without the header is served: {answer[:200]}")
    answer = refused(other, b"PROXY TCP4 198.51.100.7 192.0.2.9 1234 80\r\n" + request % b"")
    expect(b" 200 " not in answer, f"a header of a stranger is believed: {answer[:200]}")


def refused(url, request):
    try:
        return kit.raw(int(url.rsplit(":", 1)[1]), request)
    except ConnectionResetError:
        return b""


@check("Forwarded and X-Forwarded-For: logged when a trusted proxy says so", "curl")
def forwarded(place):
    place.file("index.html", "x")
    log = place.folder / "access.log"
    listen = ('[[listen]]\naddress = "127.0.0.1:0"\ntrusted = ["127.0.0.0/8"]\n[[listen]]\naddress = "127.0.0.1:0"\n')
    server = place.serve(listen=listen, log=f'access = "{log}"\nformat = "json"')
    curl(place, "-H", "X-Forwarded-For: 203.0.113.9, 198.51.100.7", f"{server.urls[0]}/?xff")
    curl(place, "-H", 'Forwarded: for="[2001:db8::9]"', f"{server.urls[0]}/?forwarded")
    curl(place, "-H", "X-Forwarded-For: 203.0.113.9", f"{server.urls[1]}/?stranger")

    def clients():
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return {line["target"]: line["client"] for line in lines} if len(lines) == 3 else None
    equal(until("the log has the requests", clients),
          {"/?xff": "198.51.100.7", "/?forwarded": "2001:db8::9", "/?stranger": "127.0.0.1"}, "clients")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
