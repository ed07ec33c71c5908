"""REDbot and httplint: HTTP as those see it who wrote much of it down. No warning is accepted."""

import concurrent.futures
import json
import subprocess
import sys
from pathlib import Path

import kit
from kit import Failure, Missing, check, expect, run

# Fixed, so that a new opinion of theirs does not fail a change that has nothing to do with it.
REQUIREMENTS = ["redbot==2.7.1", "httplint==2026.10.4"]
# Notes that are passed over, by their class. The first is wrong about multipart/byteranges, whose parts say their ranges
# (RFC 9110 section 15.3.7.2); the others only repeat the status that was asked for.
PASSED_OVER = ["PARTIAL_WITHOUT_RANGE", "STATUS_BAD_REQUEST", "STATUS_VERSION_NOT_SUPPORTED", "STATUS_URI_TOO_LONG"]


def python():
    """The interpreter of a virtual environment that has them."""
    folder = kit.OPTIONS.cache / "venv"
    interpreter, stamp = folder / "bin/python", folder / "complete"
    if not stamp.exists() or stamp.read_text() != repr(REQUIREMENTS):
        for command in ([sys.executable, "-m", "venv", folder],
                        [interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", *REQUIREMENTS]):
            done = subprocess.run(command, capture_output=True, check=False)
            if done.returncode != 0:
                raise Missing(f"no virtual environment: {done.stderr.decode(errors='replace')[-300:]}")
        stamp.write_text(repr(REQUIREMENTS))
    return interpreter


def site(place):
    """One of everything."""
    for name in ("index.html", "assets/style.css", "assets/ask.js", "assets/icon.png", "assets/icon.svg", "404.html",
                 "downloads/table.csv", "downloads/README.txt"):
        place.file(name, (kit.PROJECT / "examples/site" / name).read_bytes())
    place.file("large.bin", kit.bytes_of(2_000_000))
    place.file("empty.txt")
    # Longer than the ranges that REDbot asks for: it takes a range of all for a mistake.
    place.file("data.json", json.dumps([f"word {number}" for number in range(500)]))
    return place.serve(site="listing = true\n[site.error_pages]\n404 = \"/404.html\"", sites=RULES)


RULES = """
[[site.rule]]
match = "/cached/**"
headers = { "Cache-Control" = "max-age=31536000, immutable" }
[[site.rule]]
match = "/**"
headers = { "Cache-Control" = "max-age=60" }
[[site.rule]]
match = "/moved"
redirect = "/assets/style.css"
status = 308
[[site.rule]]
match = "/forbidden/**"
deny = ["127.0.0.0/8"]
"""

PATHS = ["/", "/assets/style.css", "/assets/ask.js", "/assets/icon.png", "/assets/icon.svg", "/downloads/table.csv",
         "/data.json", "/empty.txt", "/large.bin", "/missing", "/downloads", "/moved", "/downloads/", "/forbidden/x"]


def judge(words):
    """Runs this file where REDbot is; fails with what it finds."""
    done = run(python(), Path(__file__).resolve(), *words, status=None)
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise Failure(said + done.stderr.decode(errors="replace")[-800:])
    # Its last line says how much was judged: nothing judged is nothing shown.
    expect(said.strip().split("\n")[-1].startswith("judged "), said)


def judge_each(commands):
    """Several at once: most of what each takes is time to start."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(judge, commands))


@check("REDbot: html, css, js, png, svg, csv, json, large, empty, 404, redirects, listing", "linters")
def redbot(place):
    url = site(place).url
    judge_each(["redbot", url + path] for path in PATHS)


@check("REDbot: 206, 304, 416, other methods", "linters", "curl")
def redbot_requests(place):
    url = site(place).url
    tag = kit.curl(place, f"{url}/assets/style.css").fields["etag"]
    requests = [
        (206, "GET", "Range: bytes=0-9"), (206, "GET", "Range: bytes=0-9,20-29"), (416, "GET", "Range: bytes=99999999-"),
        (304, "GET", f"If-None-Match: {tag}"), (412, "GET", 'If-Match: "no"'), (200, "HEAD", ""), (204, "OPTIONS", ""),
        (405, "POST", ""),
    ]
    judge_each(["request", f"{url}/assets/style.css", str(status), method, field] for status, method, field in requests)


@check("httplint: raw answers, pipelined and alone", "linters")
def httplint(place):
    server = site(place)
    host = f"Host: 127.0.0.1:{server.port}\r\n"
    tag = kit.curl(place, f"{server.url}/").fields["etag"]
    requests = [
        ("GET", f"GET / HTTP/1.1\r\n{host}"), ("HEAD", f"HEAD / HTTP/1.1\r\n{host}"),
        ("GET", f"GET / HTTP/1.1\r\n{host}Range: bytes=0-9\r\n"),
        ("GET", f"GET / HTTP/1.1\r\n{host}Range: bytes=0-9,20-29\r\n"),
        ("GET", f"GET / HTTP/1.1\r\n{host}Range: bytes=99999999-\r\n"),
        ("GET", f"GET / HTTP/1.1\r\n{host}If-None-Match: {tag}\r\n"),
        ("GET", f"GET / HTTP/1.1\r\n{host}If-Match: \"no\"\r\n"),
        ("GET", f"GET /missing HTTP/1.1\r\n{host}"), ("GET", f"GET /downloads HTTP/1.1\r\n{host}"),
        ("GET", f"GET /moved HTTP/1.1\r\n{host}"), ("GET", f"GET /forbidden/x HTTP/1.1\r\n{host}"),
        ("POST", f"POST / HTTP/1.1\r\n{host}Content-Length: 0\r\n"), ("OPTIONS", f"OPTIONS * HTTP/1.1\r\n{host}"),
        ("BREW", f"BREW / HTTP/1.1\r\n{host}"), ("GET", "GET / HTTP/1.1\r\n"), ("GET", f"GET / HTTP/2.7\r\n{host}"),
        ("GET", f"GET / HTTP/1.1\r\n{host}X: {'x' * 20000}\r\n"), ("GET", f"GET /{'x' * 20000} HTTP/1.1\r\n{host}"),
        ("GET", f"GET / HTTP/1.1\r\n{host}Expect: tea\r\n"),
    ]
    words = []
    for number, (method, request) in enumerate(requests):
        answer = kit.raw(server.port, f"{request}Connection: close\r\n\r\n".encode())
        path = place.folder / f"answer{number}"
        path.write_bytes(answer)
        words += [method, request.split("\r\n")[0][:60], str(path)]
    judge(["raw", *words])


# From here on: what runs in the virtual environment.

def redbot_check(url, method="GET", headers=()):
    """Lets REDbot look at a URL; its answer and all notes, those of the requests it made besides included."""
    from configparser import ConfigParser
    import thor
    from redbot.resource import HttpResource
    parser = ConfigParser()
    parser.read_dict({"redbot": {"enable_local_access": "True"}})
    resource = HttpResource(parser["redbot"])
    resource.set_request(url, method=method, headers=list(headers))
    resource.on("check_done", thor.stop)
    resource.check()
    thor.run()
    # One loop runs once: each URL is looked at by a process of its own.
    messages = [resource.response] + [part.response for part in resource.subreqs.values()]
    return resource, [note for message in messages for note in message.notes]


def bad(what, notes):
    """Prints what is wrong; how much that is."""
    count = 0
    for note in [*notes, *(child for note in notes for child in note.subnotes)]:
        name = type(note).__name__
        if note.level.name in ("WARN", "BAD") and name not in PASSED_OVER:
            print(f"{what}: {note.level.name} {name}: {note.summary}")
            count += 1
    return count


def run_redbot(url, status="", method="GET", field=""):
    resource, notes = redbot_check(url, method, [field.split(": ", 1)] if field else [])
    response = resource.response
    if not response.complete:
        print(f"{url}: no complete answer: {resource.fetch_error}")
        return 1
    if status and response.status_code != int(status):
        print(f"{method} {url} {field}: {response.status_code} instead of {status}")
        return 1
    wrong = bad(f"{method} {url} {field}: {response.status_code}", notes)
    print("judged 1")
    return wrong


def run_raw(words):
    import time
    from httplint import HttpResponseLinter
    wrong = 0
    for method, line, path in zip(words[::3], words[1::3], words[2::3]):
        head, separator, body = Path(path).read_bytes().partition(b"\r\n\r\n")
        if not separator:
            print(f"{line}: no answer: {head!r}")
            wrong += 1
            continue
        status, *fields = head.split(b"\r\n")
        version, code, phrase = status.split(b" ", 2)
        linter = HttpResponseLinter(start_time=time.time())
        linter.is_head_response = method == "HEAD"
        linter.process_response_topline(version, code, phrase)
        linter.process_headers([tuple(field.split(b":", 1)) for field in fields])
        linter.feed_content(body)
        linter.finish_content(True)
        wrong += bad(f"{code.decode()} {line}", linter.notes)
    print(f"judged {len(words) // 3}")
    return wrong


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    sys.exit(1 if (run_raw(arguments) if command == "raw" else run_redbot(*arguments)) else 0)
