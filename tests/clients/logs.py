"""The access log: its forms, its rotation, and what happens when it cannot be written."""

import json
import os
import re
import signal
import subprocess

import kit
from administration import free_port
from kit import Skip, check, curl, equal, expect, until

COMBINED = re.compile(r'^(\S+) - (\S+) \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d \+0000\] "([^"]*)" (\d{3}) (\d+) "([^"]*)" "([^"]*)"$')


def lines_of(path, count):
    """The lines of a log once it has so many."""
    def enough():
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        return lines if len(lines) >= count else None
    return until(f"{path.name} has {count} lines", enough)


@check("log: combined lines, and nobody can forge one", "curl")
def combined(place):
    place.file("index.html", "12345")
    log = place.folder / "access.log"
    server = place.serve(log=f'access = "{log}"')
    curl(place, "-A", 'agent "quoted" \\ \xfc\t', "-e", "http://from/", f"{server.url}/?q=1")
    curl(place, "-A", 'x" 200 1 "-" "-', f"{server.url}/%0a127.0.0.1%20-%20forged")
    kit.raw(server.port, b"GARBAGE\r\n\r\n")
    kit.raw(server.port, b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\nUser-Agent: \xe2\x80\xae\r\nConnection: close\r\n\r\n")
    lines = lines_of(log, 4)
    equal(len(lines), 4, "lines")
    found = [COMBINED.match(line) for line in lines]
    expect(all(found), f"not combined: {lines}")
    expect(all(line.isprintable() for line in lines), f"control bytes: {lines}")
    first = found[[bool(match.group(6).startswith("http")) for match in found].index(True)]
    equal(first.group(1, 3, 4, 5), ("127.0.0.1", "GET /?q=1 HTTP/1.1", "200", "5"), "the first line")


@check("log: JSON lines", "curl")
def json_lines(place):
    place.file("index.html", "12345")
    log = place.folder / "access.log"
    server = place.serve(log=f'access = "{log}"\nformat = "json"')
    agent = 'quote " back \\ tab \t separator \u2028 ü'
    curl(place, "-A", agent, f"{server.url}/?a=1")
    kit.raw(server.port, b"GARBAGE\r\n\r\n")
    lines = [json.loads(line) for line in until("the log has two lines", lambda: two(log))]
    first = next(line for line in lines if line.get("method") == "GET")
    equal(first["user_agent"], agent, "the agent")
    equal((first["status"], first["bytes"], first["target"], first["client"]), (200, 5, "/?a=1", "127.0.0.1"), "facts")
    expect(first["duration"] < 30 and len({line["request_id"] for line in lines}) == 2, f"{lines}")


def two(log):
    lines = log.read_text().splitlines() if log.exists() else []
    return lines if len(lines) >= 2 else None


@check("log: USR1 reopens it after a rotation, and no line is lost", "curl")
def reopened(place):
    place.file("index.html", "x")
    log = place.folder / "access.log"
    server = place.serve(log=f'access = "{log}"')
    total = 0
    for turn in range(3):
        for number in range(20):
            curl(place, f"{server.url}/?{turn}.{number}")
            total += 1
        log.rename(place.folder / f"access.log.{turn}")
        said = len(server.said)
        server.signal(signal.SIGUSR1)
        server.wait_for("reopened", after=said)
    curl(place, f"{server.url}/?last")
    lines_of(log, 1)

    def all_lines():
        return [line for path in place.folder.glob("access.log*") for line in path.read_text().splitlines()]
    until("all lines are written", lambda: len(all_lines()) >= total + 1)
    equal(len(set(re.search(r"/\?\S+", line).group(0) for line in all_lines())), total + 1, "requests logged")
    equal(server.counter("log_lines_lost"), 0, "lines lost")


@check("log: a full disk loses lines and counts them, never requests", "root", "mount", "curl")
def full_disk(place):
    place.file("index.html", "x")
    disk = place.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=1777", "tmpfs", disk], capture_output=True,
                             check=False)
    if mounted.returncode != 0:
        raise Skip(f"mount: {mounted.stderr.decode()}")
    place.cleanups.append(lambda: subprocess.run(["umount", "-l", disk], check=False))
    log, filler = disk / "access.log", disk / "filler"
    filler.write_bytes(bytes(28_000))
    server = place.serve(log=f'access = "{log}"')
    config = place.folder / "urls"
    config.write_text("".join(f'url = "{server.url}/?{number}"\noutput = "/dev/null"\n' for number in range(100)))
    # Three kilobytes a line: the disk is full after some ten of them.
    kit.run("curl", "-q", "-sS", "-f", "-A", "a" * 3000, "-K", config)
    equal(server.counter("responses_2xx"), 100, "answers")

    def lines():
        return log.read_text().splitlines()

    def kept():
        return sum(bool(COMBINED.match(line)) for line in lines())
    until("all lines are written or counted as lost", lambda: server.counter("log_lines_lost") + kept() >= 100)
    equal(server.counter("log_lines_lost") + kept(), 100, f"lines lost and kept ({kept()})")
    expect(0 < kept() < 100, f"{kept()} lines were kept: the disk was not full")
    # Space again: what comes now is written, and does not stick to half a line.
    filler.unlink()
    curl(place, "-A", "after", f"{server.url}/?after")
    until("the log goes on", lambda: any("?after" in line for line in lines()))
    expect(COMBINED.match(lines()[-1]), f"a broken line: {lines()[-1][-300:]!r}")
    broken = [line for line in lines() if line and not COMBINED.match(line)]
    expect(len(broken) <= 2, f"more than half a line for each worker: {len(broken)}")


@check("log: /dev/full instead of a file", "curl")
def dev_full(place):
    place.file("index.html", "x")
    server = place.serve(log='access = "/dev/full"')
    for _ in range(10):
        equal(curl(place, server.url).status, 200, "a request")
    until("lines are counted as lost", lambda: server.counter("log_lines_lost") == 10)


@check("log: a dead pipe behind stdout loses lines, never requests or workers", "curl")
def dead_pipe(place):
    place.file("index.html", "x")
    reader, writer = os.pipe()
    server = place.serve(log='access = "stdout"', stdout=writer)
    os.close(writer)
    curl(place, server.url)
    expect(b"GET / HTTP/1.1" in os.read(reader, 65536), "the log does not arrive at all")
    workers = server.workers()
    os.close(reader)
    for _ in range(10):
        equal(curl(place, server.url).status, 200, "a request")
    until("lines are counted as lost", lambda: server.counter("log_lines_lost") == 10)
    equal(server.workers(), workers, "the workers")


@check("log: a pipe that nobody reads holds nothing up", "curl")
def full_pipe(place):
    place.file("index.html", "x")
    reader, writer = os.pipe()
    place.cleanups.append(lambda: os.close(reader))
    server = place.serve(log='access = "stdout"', server='drain = "1s"', stdout=writer)
    os.close(writer)
    config = place.folder / "urls"
    config.write_text("".join(f'url = "{server.url}/?{number}"\noutput = "/dev/null"\n' for number in range(300)))
    kit.run("curl", "-q", "-sS", "-f", "-A", "a" * 3000, "-K", config)
    equal(server.counter("responses_2xx"), 300, "answers")
    # The lines are stuck in a pipe: stopping waits for them no longer than for a slow client.
    server.signal(signal.SIGTERM)
    equal(server.ended(), 0, "exit status")


@check("diagnostics: a full or dead stderr does not end the server", "curl")
def dead_stderr(place):
    place.file("index.html", "x")
    server = place.serve()
    script = f'exec "$0" -c "$1" 2>/dev/full'
    other = place.folder / "other.toml"
    port = free_port()
    other.write_text(place.configuration(listen=f'[[listen]]\naddress = "127.0.0.1:{port}"\n'))
    process = subprocess.Popen(["sh", "-c", script, kit.OPTIONS.httpd, other], cwd=place.folder, stdin=subprocess.DEVNULL)
    try:
        until("it serves", lambda: subprocess.run(["curl", "-q", "-sf", "-o", "/dev/null", f"http://127.0.0.1:{port}/"],
                                                  check=False).returncode == 0)
        process.send_signal(signal.SIGHUP)
        equal(curl(place, f"http://127.0.0.1:{port}/").status, 200, "after a reload")
    finally:
        process.send_signal(signal.SIGTERM)
        equal(process.wait(kit.PATIENCE), 0, "its exit status")
    equal(curl(place, server.url).status, 200, "another server")
