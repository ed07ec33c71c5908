"""Programs behind the server: git both ways, gitweb, cgit, php-cgi, perl's CGI.pm, and scripts that misbehave."""

import concurrent.futures
import gzip
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from kit import PATIENCE, Failure, bytes_of, check, curl, equal, expect, raw, run, until

GIT_BACKEND = "/usr/lib/git-core/git-http-backend"
# A push larger than this is sent in chunks (http.postBuffer).
POST_BUFFER = 1 << 20
PUSH_BYTES = 60 << 20


def script(place, name, text):
    """An executable file in the directory of scripts."""
    path = place.folder / "cgi" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def cgi(place, keys="", **keywords):
    """A server with the place's scripts below /cgi-bin/."""
    (place.folder / "cgi").mkdir(exist_ok=True)
    return place.serve(sites=f'[[site.cgi]]\npath = "/cgi-bin/"\ndir = "{place.folder}/cgi"\n{keys}\n', **keywords)


def processes(mark):
    """Processes whose environment or command line holds a text: those a test started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in told:
                found.append((int(entry.name), told[-200:]))
    return found


def gone(place, what):
    """Waits until no process is left that a script of this place began."""
    try:
        until(f"{what} is gone", lambda: not processes(f"TEST_PLACE={place.folder}"))
    except Failure as failure:
        raise Failure(f"{failure}: {processes(f'TEST_PLACE={place.folder}')}") from failure


class Git:
    """A repository behind the server, and a user's git."""

    def __init__(self, place, keys=""):
        self.place = place
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(place.folder), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8",
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
            "GIT_TERMINAL_PROMPT": "0",
        }
        self.repositories = place.folder / "git"
        self.bare = self.repositories / "project.git"
        self.run("init", "-q", "--bare", "-b", "main", self.bare)
        self.run("config", "http.receivepack", "true", cwd=self.bare)
        self.work = place.folder / "work"
        self.run("init", "-q", "-b", "main", self.work)
        for number in range(3):
            self.commit(f"{number}.txt", f"text {number}\n".encode())
        self.run("push", "-q", self.bare, "main", cwd=self.work)
        # Workers and scripts may run as another user, where the tests are root's.
        if os.geteuid() == 0:
            self.owned()
        environment = (f'GIT_PROJECT_ROOT = "{self.repositories}", GIT_HTTP_EXPORT_ALL = "1",'
                       f' TEST_PLACE = "{place.folder}", GIT_CONFIG_COUNT = "1",'
                       f' GIT_CONFIG_KEY_0 = "safe.directory", GIT_CONFIG_VALUE_0 = "*"')
        self.server = place.serve(sites=f'[[site.cgi]]\npath = "/git/"\nscript = "{GIT_BACKEND}"\n'
                                        f'chunked = "stream"\nenv = {{ {environment} }}\n{keys}\n')
        self.url = f"{self.server.url}/git/project.git"

    def owned(self):
        for path in [self.repositories, *self.repositories.rglob("*")]:
            os.chmod(path, 0o777 if path.is_dir() else 0o666)

    def run(self, *words, cwd=None, status=0, **environment):
        done = run("git", *words, cwd=cwd or self.place.folder, env=self.environment | environment, status=status)
        return (done.stdout + done.stderr).decode(errors="replace").strip()

    def commit(self, name, content):
        (self.work / name).write_bytes(content)
        self.run("add", ".", cwd=self.work)
        self.run("commit", "-q", "-m", name, cwd=self.work)

    def head(self, folder):
        return self.run("rev-parse", "HEAD", cwd=folder)


@check("cgi: git: clone, shallow clone, push, fetch by protocol version 2", "git")
def git_both_ways(place):
    git = Git(place)
    git.run("clone", "-q", git.url, "copy")
    equal(git.head(place.folder / "copy"), git.head(git.work), "what was cloned")
    git.run("fsck", "--full", cwd=place.folder / "copy")
    git.run("clone", "-q", "--depth", "1", git.url, "shallow")
    equal(git.run("rev-list", "--count", "HEAD", cwd=place.folder / "shallow"), "1", "commits of a shallow clone")
    git.commit("more.txt", b"more\n")
    git.run("push", "-q", git.url, "main", cwd=git.work)
    equal(git.head(git.bare), git.head(git.work), "what was pushed")
    said = git.run("-c", "protocol.version=2", "fetch", cwd=place.folder / "copy", GIT_TRACE_PACKET="1")
    expect("version 2" in said, f"the fetch did not speak version 2: {said[:400]}")
    equal(git.run("rev-parse", "origin/main", cwd=place.folder / "copy"), git.head(git.work), "what was fetched")
    # What git compresses by itself arrives as it was sent: many wants make a compressed request.
    for number in range(300):
        git.run("update-ref", f"refs/heads/b{number}", "HEAD", cwd=git.work)
    git.run("push", "-q", git.url, "--all", cwd=git.work)
    git.run("clone", "-q", git.url, "many")
    equal(git.run("ls-remote", "--heads", git.url).count("refs/heads/b"), 300, "branches")


@check("cgi: git: a push of 60 MiB in chunks, and its clone", "git")
def git_large_push(place):
    git = Git(place)
    git.commit("large.bin", os.urandom(PUSH_BYTES))
    said = git.run("push", git.url, "main", cwd=git.work, GIT_CURL_VERBOSE="1")
    expect("Transfer-Encoding: chunked" in said, "the push was not sent in chunks")
    equal(git.head(git.bare), git.head(git.work), "what was pushed")
    git.run("clone", "-q", git.url, "copy")
    equal(hashlib.sha256((place.folder / "copy/large.bin").read_bytes()).hexdigest(),
          hashlib.sha256((git.work / "large.bin").read_bytes()).hexdigest(), "the large file")


@check("cgi: git: a push that is not allowed is refused with 403", "git")
def git_refused_push(place):
    git = Git(place)
    git.run("config", "http.receivepack", "false", cwd=git.bare)
    if os.geteuid() == 0:
        git.owned()
    git.commit("more.txt", b"more\n")
    said = git.run("push", git.url, "main", cwd=git.work, status=None)
    expect("403" in said, f"git was told: {said}")


@check("cgi: git: a client killed in the middle of a clone leaves no process", "git")
def git_killed(place):
    git = Git(place)
    git.commit("large.bin", os.urandom(24 << 20))
    git.run("push", "-q", git.bare, "main", cwd=git.work)
    if os.geteuid() == 0:
        git.owned()
    # Slow enough that the clone cannot be over.
    client = subprocess.Popen(["git", "clone", "-q", git.url, "copy"], cwd=place.folder, env=git.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              start_new_session=True)
    mark = f"TEST_PLACE={place.folder}"
    until("the clone has begun", lambda: processes(mark) or client.poll() is not None)
    os.killpg(client.pid, signal.SIGKILL)
    client.wait(PATIENCE)
    gone(place, "git-http-backend")


GITWEB = "/usr/share/gitweb/gitweb.cgi"
CGIT = "/usr/lib/cgit/cgit.cgi"


@check("cgi: gitweb", "git", GITWEB)
def gitweb(place):
    git = Git(place)
    config = place.folder / "gitweb.conf"
    config.write_text(f'$projectroot = "{git.repositories}"; $ENV{{GIT_CONFIG_COUNT}} = 1;'
                      '$ENV{GIT_CONFIG_KEY_0} = "safe.directory"; $ENV{GIT_CONFIG_VALUE_0} = "*";\n1;\n')
    server = place.serve(sites=f'[[site.cgi]]\npath = "/gitweb/"\nscript = "{GITWEB}"\n'
                               f'env = {{ GITWEB_CONFIG = "{config}" }}\n')
    answer = curl(place, f"{server.url}/gitweb/")
    expect(answer.status == 200 and b"project.git" in answer.body, answer)
    answer = curl(place, f"{server.url}/gitweb/?p=project.git;a=summary")
    expect(answer.status == 200 and b"2.txt" in answer.body, answer)
    answer = curl(place, f"{server.url}/gitweb/?p=project.git;a=snapshot;h=HEAD;sf=tgz")
    expect(answer.status == 200 and gzip.decompress(answer.body)[257:262] == b"ustar", answer)
    equal(curl(place, f"{server.url}/gitweb/?p=none.git").status, 404, "a project that is not there")


@check("cgi: cgit", "git", CGIT)
def cgit(place):
    git = Git(place)
    config = place.folder / "cgitrc"
    config.write_text(f"virtual-root=/cgit/\ncache-size=0\nscan-path={git.repositories}\n")
    server = place.serve(sites=f'[[site.cgi]]\npath = "/cgit/"\nscript = "{CGIT}"\n'
                               f'env = {{ CGIT_CONFIG = "{config}", GIT_CONFIG_COUNT = "1",'
                               f' GIT_CONFIG_KEY_0 = "safe.directory", GIT_CONFIG_VALUE_0 = "*" }}\n')
    answer = curl(place, f"{server.url}/cgit/")
    expect(answer.status == 200 and b"project" in answer.body, answer)
    answer = curl(place, f"{server.url}/cgit/project.git/log/")
    expect(answer.status == 200 and b"2.txt" in answer.body, answer)
    equal(curl(place, f"{server.url}/cgit/project.git/plain/1.txt").body, b"text 1\n", "a file of the repository")


@check("cgi: php-cgi", "php-cgi")
def php(place):
    script(place, "form.php", """#!/usr/bin/php-cgi
<?php
setcookie("a", "1"); setcookie("b", "2");
header("X-Method: " . $_SERVER["REQUEST_METHOD"]);
if (isset($_GET["status"])) { http_response_code((int) $_GET["status"]); }
if (isset($_GET["to"])) { header("Location: " . $_GET["to"]); exit; }
echo $_SERVER["SCRIPT_NAME"], "|", $_SERVER["PATH_INFO"] ?? "-", "|", $_POST["name"] ?? "-", "|";
echo isset($_FILES["upload"]) ? md5_file($_FILES["upload"]["tmp_name"]) : "-";
""")
    server = cgi(place)
    url = f"{server.url}/cgi-bin/form.php"
    answer = curl(place, url + "/more/path")
    equal((answer.status, answer.body), (200, b"/cgi-bin/form.php|/more/path|-|-"), "a GET")
    heads = (place.folder / "curl.heads").read_text()
    equal(heads.lower().count("set-cookie:"), 2, "cookies")
    equal(curl(place, "-d", "name=x%20y", url).body, b"/cgi-bin/form.php|-|x y|-", "a form")
    equal(curl(place, "-H", "Transfer-Encoding: chunked", "-d", "name=z", url).body, b"/cgi-bin/form.php|-|z|-",
          "a form sent in chunks, whose length the program has to be told")
    upload = place.folder / "upload.bin"
    upload.write_bytes(bytes_of(1_500_000))
    equal(curl(place, "-F", f"upload=@{upload}", url).body.decode().split("|")[-1],
          hashlib.md5(upload.read_bytes()).hexdigest(), "an upload")
    equal(curl(place, url + "?status=418").status, 418, "a status of the program's own")
    answer = curl(place, url + "?to=https://example.org/x")
    equal((answer.status, answer.fields["location"]), (302, "https://example.org/x"), "a redirect")
    answer = curl(place, "-I", url)
    equal((answer.status, answer.fields["x-method"]), (200, "HEAD"), "a HEAD")


@check("cgi: perl's CGI.pm", "perl", "/usr/share/perl5/CGI.pm")
def perl(place):
    script(place, "form.pl", r"""#!/usr/bin/perl
use CGI; my $q = CGI->new;
if (my $to = $q->url_param("to")) { print $q->redirect(-uri => $to, -status => 303); exit }
print $q->header(-type => "text/plain", -charset => "utf-8", -status => $q->url_param("status") // "200 OK");
print join("|", $q->request_method, $q->path_info, $q->param("name") // "-", $q->remote_addr, $q->url(-path => 1));
""")
    server = cgi(place)
    url = f"{server.url}/cgi-bin/form.pl"
    equal(curl(place, f"{url}/p?name=q").body.decode(), f"GET|/p|q|127.0.0.1|{url}/p", "a GET")
    equal(curl(place, "-d", "name=x+y", url).body.decode(), f"POST||x y|127.0.0.1|{url}", "a POST")
    equal(curl(place, f"{url}?status=404%20Gone").status, 404, "a status")
    answer = curl(place, f"{url}?to=/elsewhere")
    equal((answer.status, answer.fields["location"]), (303, "/elsewhere"), "a redirect")


MISBEHAVING = {
    "print-forever": 'echo "Content-Type: text/plain"; echo; exec yes',
    "print-nothing": "exit 0",
    "print-broken": 'echo "this is no head"; echo; echo body',
    "half-then-1": 'echo "Content-Type: text/plain"; echo "Content-Length: 100"; echo; printf 0123456789; exit 1',
    "killed": 'echo "Content-Type: text/plain"; echo; printf half; kill -KILL $$',
    "close-stdin": 'exec 0<&-; echo "Content-Type: text/plain"; echo; echo deaf',
    "ignore-term": "trap '' TERM; while :; do sleep 1; done",
    "fork-and-go": 'echo "Content-Type: text/plain"; echo; echo parent; (sleep 60) & exit 0',
    "daemonise": ('echo "Content-Type: text/plain"; echo; echo parent;'
                  ' setsid sh -c "trap \\"\\" TERM; sleep 61" & exit 0'),
    "silent": "sleep 62",
    "noisy": 'echo "Content-Type: text/plain"; echo; echo ok; i=0; while [ $i -lt 500 ]; do echo line >&2; i=$((i+1)); done',
    "environment": 'echo "Content-Type: text/plain"; echo; env; ls -l /proc/self/fd | wc -l',
    "echo": 'echo "Content-Type: application/octet-stream"; echo; cat',
    "local": 'echo "Location: /cgi-bin/environment?from=local"; echo',
    "loop": 'echo "Location: /cgi-bin/loop"; echo',
    "nph-own": r'printf "HTTP/1.1 299 Own\r\nX-Own: yes\r\nContent-Length: 3\r\n\r\nraw"',
}


def misbehaving(place, keys=""):
    for name, text in MISBEHAVING.items():
        script(place, name, f"#!/bin/sh\n{text}\n")
    server = cgi(place, f'timeout = "2s"\nenv = {{ TEST_PLACE = "{place.folder}" }}\n{keys}')
    return server, f"{server.url}/cgi-bin/"


@check("cgi: scripts that misbehave", "curl")
def misbehave(place):
    server, url = misbehaving(place, 'background = false\ngrace = "500ms"')
    for name, status in [("print-nothing", 502), ("print-broken", 502), ("silent", 504), ("ignore-term", 504),
                         ("loop", 502), ("none", 404), ("../cgi-bin/none", 404)]:
        equal(curl(place, "--path-as-is", url + name).status, status, name)
    # Cut short where the beginning is on its way, 502 where it is not.
    for name in ("half-then-1", "killed"):
        said = raw(server.port, f"GET /cgi-bin/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        whole = said.endswith(b"0\r\n\r\n") or b"Content-Length: 10\r\n" in said
        expect(not whole and said[9:12] in (b"", b"200", b"502"), f"{name}: {said}")
    equal(curl(place, "-d", "x" * 100_000, url + "close-stdin").body, b"deaf\n", "a script that reads nothing")
    for name in ("fork-and-go", "daemonise"):
        began = time.monotonic()
        equal(curl(place, url + name).body, b"parent\n", name)
        expect(time.monotonic() - began < 20, f"{name}: the answer waited for what the script left running")
    heads = raw(server.port, b"GET /cgi-bin/nph-own HTTP/1.1\r\nHost: x\r\n\r\n")
    equal(heads, b"HTTP/1.1 299 Own\r\nX-Own: yes\r\nContent-Length: 3\r\n\r\nraw", "a response of the script's own")
    answer = curl(place, url + "local")
    expect(answer.status == 200 and b"QUERY_STRING=from=local\n" in answer.body, answer)
    equal(curl(place, url + "noisy").body, b"ok\n", "a script that complains much")
    # One that prints for ever ends with its client.
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
        client.sendall(b"GET /cgi-bin/print-forever HTTP/1.1\r\nHost: x\r\n\r\n")
        received = 0
        while received < 3_000_000:
            received += len(client.recv(1 << 16))
    gone(place, "every script")
    # The log says which script, and why.
    for words in ("printed nothing", "not \"Name: value\"", "silent for longer"):
        expect(any(words in line for line in server.said), f"the log does not say {words!r}: {server.said[-20:]}")


@check("cgi: what a script is told, and nothing else", "curl")
def environment(place):
    os.environ["TEST_SECRET"] = "must not be seen"
    try:
        server, url = misbehaving(place)
    finally:
        del os.environ["TEST_SECRET"]
    answer = curl(place, "-H", "Proxy: evil", "-H", "X_Under: 1", "-H", "X-Dash: 2", "-u", "ann:secret",
                  url + "environment/more%20path?a=b%20c")
    told = dict(line.split("=", 1) for line in answer.body.decode().split("\n") if "=" in line)
    equal(int(answer.body.split()[-1]) <= 6, True, f"open descriptors of a script: {answer.body[-40:]}")
    for name, value in {
            "GATEWAY_INTERFACE": "CGI/1.1", "QUERY_STRING": "a=b%20c", "REMOTE_ADDR": "127.0.0.1",
            "REQUEST_METHOD": "GET", "SCRIPT_NAME": "/cgi-bin/environment", "PATH_INFO": "/more path",
            "SERVER_NAME": "127.0.0.1", "SERVER_PORT": str(server.port), "SERVER_PROTOCOL": "HTTP/1.1",
            "REQUEST_URI": "/cgi-bin/environment/more%20path?a=b%20c", "HTTP_X_DASH": "2", "REDIRECT_STATUS": "200",
            "DOCUMENT_ROOT": str(place.root), "SCRIPT_FILENAME": str(place.folder / "cgi/environment"),
            "PATH_TRANSLATED": f"{place.root}/more path", "REQUEST_SCHEME": "http"}.items():
        equal(told.get(name), value, name)
    for name in ("HTTP_PROXY", "HTTP_X_UNDER", "HTTP_AUTHORIZATION", "REMOTE_USER", "AUTH_TYPE", "CONTENT_LENGTH",
                 "CONTENT_TYPE", "HTTPS", "TEST_SECRET"):
        expect(name not in told, f"{name} is {told.get(name)}")


@check("cgi: bodies stream both ways", "curl")
def streams(place):
    server, url = misbehaving(place, 'chunked = "stream"')
    large = place.folder / "large.bin"
    large.write_bytes(bytes_of(20_000_000))
    for words in (["--data-binary", f"@{large}"], ["-T", large, "-X", "POST"],
                  ["-H", "Transfer-Encoding: chunked", "--data-binary", f"@{large}"],
                  ["-H", "Expect: 100-continue", "--data-binary", f"@{large}"], ["-0", "--data-binary", f"@{large}"]):
        answer = curl(place, *words, url + "echo")
        expect(answer.status == 200 and answer.body == large.read_bytes(), f"{words}: {answer}")
    # The answer begins while the request has not ended.
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
        client.sendall(b"POST /cgi-bin/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        said = b""
        while b"hello" not in said:
            said += client.recv(4096)
        client.sendall(b"3\r\nyou\r\n0\r\n\r\nGET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while piece := client.recv(4096):
            said += piece
    expect(b"3\r\nyou\r\n0\r\n\r\nHTTP/1.1 404" in said, f"the end of the echo, then the next answer: {said[-300:]}")
    equal(curl(place, "-H", "Transfer-Encoding: chunked", "--data-binary", f"@{large}", url + "close-stdin").body,
          b"deaf\n", "an answer to a body that nobody reads")


@check("cgi: 200 scripts at a time, and more than may run", "curl")
def many(place):
    script(place, "wait", '#!/bin/sh\nsleep 1\necho "Content-Type: text/plain"\necho\necho "$QUERY_STRING"\n')
    server = cgi(place, "concurrency = 400\nqueue = 400")

    def ask(number, port=None):
        said = raw(port or server.port, b"GET /cgi-bin/wait?%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % number)
        return int(said[9:12]), said

    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        for number, (status, said) in enumerate(pool.map(ask, range(200))):
            expect(status == 200 and b"%d\n" % number in said, f"request {number}: {said[-200:]}")
        # Workers share what is allowed: no more than four run, and four wait.
        small = cgi(place, "concurrency = 4\nqueue = 4")
        answers = list(pool.map(lambda number: ask(number, small.port), range(60)))
    statuses = [status for status, _ in answers]
    expect(set(statuses) == {200, 503}, f"statuses: {sorted(set(statuses))}")
    expect(all(b"\r\nRetry-After: " in said for status, said in answers if status == 503), "a 503 without Retry-After")


@check("cgi: the log says what operators look for", "curl")
def logged(place):
    log = place.folder / "access.log"
    for name, text in MISBEHAVING.items():
        script(place, name, f"#!/bin/sh\n{text}\n")
    server = cgi(place, 'timeout = "1s"', log=f'access = "{log}"\nformat = "json"')
    url = f"{server.url}/cgi-bin/"
    curl(place, url + "local?x=1")
    curl(place, "--data-binary", "hello", url + "echo")
    curl(place, url + "silent")
    server.signal(signal.SIGTERM)
    server.ended()
    lines = log.read_text().splitlines()
    found = [(re.search(r'"target":"([^"]*)"', line)[1], int(re.search(r'"status":(\d+)', line)[1]),
              int(re.search(r'"bytes":(\d+)', line)[1])) for line in lines]
    equal([(target, status) for target, status, _ in found],
          [("/cgi-bin/local?x=1", 200), ("/cgi-bin/echo", 200), ("/cgi-bin/silent", 504)], "lines")
    equal(found[1][2], 5, "bytes of content")
