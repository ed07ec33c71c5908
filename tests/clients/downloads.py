"""curl, wget, aria2 and zsync: whole files, parts of files, what was broken off."""

import os
import threading
from pathlib import Path

from kit import Missing, bytes_of, check, curl, equal, expect, run

BIG = 50_000_000
TREE = Path("/usr/share/doc/python3.11/html")


@check("curl: pages, fields, HEAD, OPTIONS, HTTP/1.0", "curl")
def pages(place):
    place.file("index.html", "<!doctype html><title>x</title>")
    place.file("a b%c.txt", "percent")
    place.file("dir/index.html", "in a directory")
    url = place.serve().url
    page = curl(place, url)
    equal((page.status, page.body), (200, b"<!doctype html><title>x</title>"), "the page")
    for name in ("date", "etag", "last-modified", "content-length", "accept-ranges"):
        expect(name in page.fields, f"{name} is missing from {page}")
    equal(page.fields["content-type"], "text/html; charset=utf-8", "its type")
    head = curl(place, "-I", url)
    equal({**head.fields, "date": ""}, {**page.fields, "date": ""}, "fields of HEAD")
    equal(curl(place, f"{url}/a%20b%25c.txt").body, b"percent", "a name with space and percent sign")
    equal(curl(place, f"{url}/dir?x=1").fields.get("location"), "/dir/?x=1", "the way into a directory")
    equal(curl(place, "-L", f"{url}/dir").body, b"in a directory", "the directory")
    options = curl(place, "-X", "OPTIONS", "--request-target", "*", url)
    equal((options.status, options.body), (204, b""), "OPTIONS *")
    expect("GET" in options.fields.get("allow", ""), f"no Allow in {options}")
    old = curl(place, "--http1.0", url)
    equal((old.status, old.body), (200, page.body), "HTTP/1.0")


@check("curl: uploads are refused, whatever their size, and the answer arrives", "curl")
def uploads(place):
    place.file("index.html", "x")
    body = place.folder / "body"
    body.write_bytes(bytes_of(3_000_000))
    url = place.serve().url
    for words in (["-d", "a=b"], ["-T", str(body)], ["-F", f"file=@{body}"], ["-X", "DELETE"],
                  ["-T", str(body), "-H", "Transfer-Encoding: chunked"], ["-T", str(body), "-H", "Expect:"]):
        # 55 and 56 are curl's for a connection that ends while it still sends; it must have the answer by then.
        answer = curl(place, *words, f"{url}/index.html")
        equal(answer.status, 405, f"curl {' '.join(words)}")
        expect("GET" in answer.fields.get("allow", ""), f"no Allow in {answer}")
    equal(curl(place, "-X", "BREW", url).status, 501, "an unknown method")


@check("curl: ranges, one and several", "curl")
def ranges(place):
    data = bytes_of(300_000)
    place.file("file.bin", data)
    url = place.serve().url + "/file.bin"
    for word, expected in (("0-99", data[:100]), ("-100", data[-100:]), ("299900-", data[-100:]),
                           ("100-400000", data[100:])):
        part = curl(place, "-r", word, url)
        equal((part.status, part.body), (206, expected), word)
    several = curl(place, "-r", "0-9,100000-100009", url)
    equal(several.status, 206, "several ranges")
    expect(several.fields["content-type"].startswith("multipart/byteranges"), f"no parts in {several}")
    expect(data[:10] in several.body and data[100000:100010] in several.body, "the parts are not those asked for")
    equal(int(several.fields["content-length"]), len(several.body), "length of the parts")
    beyond = curl(place, "-r", "300000-", url)
    equal((beyond.status, beyond.fields.get("content-range")), (416, "bytes */300000"), "a range beyond the end")
    stale = curl(place, "-r", "0-9", "-H", 'If-Range: "other"', url)
    equal((stale.status, stale.body), (200, data), "If-Range with another tag")


@check("curl: revalidation by tag and by date", "curl")
def revalidation(place):
    place.file("page.html", "first")
    url = place.serve().url + "/page.html"
    tag = place.folder / "etag"
    equal(curl(place, "--etag-save", tag, url).status, 200, "the first time")
    again = curl(place, "--etag-compare", tag, url)
    equal((again.status, again.body), (304, b""), "the second time")
    expect("etag" in again.fields and "content-length" not in again.fields, f"fields of {again}")
    copy = place.folder / "copy.html"
    run("curl", "-q", "-sS", "-R", "-o", copy, url)
    equal(curl(place, "-z", copy, url).status, 304, "by the date of the copy")
    place.file("page.html", "second")
    until_new = 0
    while curl(place, "--etag-compare", tag, url).body != b"second":
        until_new += 1
        expect(until_new < 200, "a changed file is never seen")


@check("curl: 50 MB, resumed three times", "curl")
def resumed(place):
    data = bytes_of(BIG)
    place.file("big.bin", data)
    url = place.serve().url + "/big.bin"
    copy = place.folder / "copy"
    for kept in (1, 20_000_001, 49_999_999):
        copy.write_bytes(data[:kept])
        run("curl", "-q", "-sS", "-C", "-", "-o", copy, url)
        expect(copy.read_bytes() == data, f"resumed at {kept}, the copy differs")
    # Of a complete copy nothing is left to fetch: 416, which curl takes for what it is.
    done = run("curl", "-q", "-sS", "-C", "-", "-o", copy, "-w", "%{http_code}", url, status=None)
    equal(done.stdout, b"416", "resumed at the end")
    expect(copy.read_bytes() == data, "resumed at the end, the copy differs")


@check("curl: interrupted downloads leave nothing behind", "curl")
def interrupted(place):
    place.file("big.bin", bytes_of(BIG))
    server = place.serve()
    for _ in range(20):
        # 23: the reader of curl's output goes away; 63: larger than is wanted.
        run("sh", "-c", f"curl -q -sS {server.url}/big.bin | head -c 100000 > /dev/null", status=None)
    equal(curl(place, "-r", "0-3", f"{server.url}/big.bin").status, 206, "after that")
    count = 0
    while server.counter("connections_active") > 0:
        count += 1
        expect(count < 500, "connections of clients that are gone stay open")
    for worker in server.workers():
        names = [os.readlink(link) for link in links(worker)]
        expect(sum("big.bin" in name for name in names) <= 1, f"worker {worker} holds {names}")


def links(pid):
    return [entry.path for entry in os.scandir(f"/proc/{pid}/fd") if os.path.islink(entry.path)]


@check("curl --path-as-is: nothing outside of the root", "curl")
def traversal(place):
    (place.folder / "secret").write_text("SECRET")
    place.file("sub/page.txt", "page")
    (place.root / "out").symlink_to(place.folder)
    (place.root / "absolute").symlink_to("/etc/passwd")
    (place.root / "proc").symlink_to("/proc/self")
    url = place.serve().url
    paths = [
        "/../secret", "/sub/../../secret", "/%2e%2e/secret", "/.%2e/secret", "/%2e./secret", "/..%2fsecret", "/..%2Fsecret",
        "/..%5csecret", "/..\\secret", "/sub/..%2f..%2fsecret", "//../secret", "/./../secret", "/sub//..//../secret",
        "/%252e%252e/secret", "/..;/secret", "/..%00/secret", "/sub/page.txt%00/../../../secret", "/out/secret",
        "/out/root/../secret", "/absolute", "/proc/cwd", "/proc/environ", "/%c0%ae%c0%ae/secret", "/%uff0e%uff0e/secret",
        "/....//secret", "/../" * 20 + "etc/passwd", "/%2e%2e" * 12 + "/etc/passwd", "/%ff%fe/..%2f..%2fetc/passwd",
        "/sub/page.txt/../../secret", "/sub/page.txt/", "/sub/page.txt/.", "/sub/..", "/.", "/..", "/sub/%2e%2e/%2e%2e/secret",
    ]
    for path in paths:
        answer = curl(place, "--path-as-is", url + path)
        expect(b"SECRET" not in answer.body and b"root:" not in answer.body, f"{path} leads out: {answer}")
        expect(400 <= answer.status < 500 or path in ("/sub/..", "/.", "/..", "/proc/cwd"), f"{path}: {answer}")
    equal(curl(place, "--path-as-is", url + "/sub/../sub/./page.txt").body, b"page", "dots within the root")


@check("curl -Z: 300 files over parallel connections", "curl")
def parallel(place):
    lines = []
    for number in range(300):
        place.file(f"f{number}.bin", bytes_of(1 + number * 1237, number + 1))
    server = place.serve()
    for number in range(300):
        lines.append(f'url = "{server.url}/f{number}.bin"\noutput = "{place.folder}/copy{number}"\n')
    config = place.folder / "urls"
    config.write_text("".join(lines))
    run("curl", "-q", "-sS", "-Z", "--parallel-max", "40", "-K", config)
    for number in range(300):
        same = (place.folder / f"copy{number}").read_bytes() == (place.root / f"f{number}.bin").read_bytes()
        expect(same, f"f{number}.bin differs")


@check("curl --compressed: files compressed in advance", "curl")
def compressed(place):
    import gzip
    text = b"many many words\n" * 1000
    place.file("words.txt", text)
    place.file("words.txt.gz", gzip.compress(text))
    url = place.serve().url + "/words.txt"
    plain = curl(place, url)
    equal((plain.body, plain.fields.get("content-encoding")), (text, None), "without Accept-Encoding")
    packed = curl(place, "--compressed", url)
    equal(packed.body, text, "unpacked")
    equal(packed.fields.get("content-encoding"), "gzip", "the coding")
    expect("accept-encoding" in packed.fields.get("vary", "").lower(), f"no Vary in {packed}")
    expect("accept-encoding" in plain.fields.get("vary", "").lower(), f"no Vary in {plain}")
    expect(plain.fields["etag"] != packed.fields["etag"], "one tag for two representations")


@check("curl: https, with the certificate made at start", "curl")
def https(place):
    data = bytes_of(6_000_000)
    place.file("index.html", "by TLS")
    place.file("big.bin", data)
    server = place.serve(listen='[[listen]]\naddress = "127.0.0.1:0"\ntls = true\n',
                         site='hsts = "max-age=600"', sites="[[site.certificate]]\nself_signed = true\n")
    for version in ("--tlsv1.3", "--tls-max 1.2"):
        page = curl(place, "-k", *version.split(), server.url)
        equal((page.status, page.body), (200, b"by TLS"), version)
        equal(page.fields.get("strict-transport-security"), "max-age=600", "HSTS")
        expect(curl(place, "-k", *version.split(), f"{server.url}/big.bin").body == data, f"{version}: the file differs")
        part = curl(place, "-k", *version.split(), "-r", "5000000-", f"{server.url}/big.bin")
        expect(part.body == data[5_000_000:], f"{version}: the range differs")


@check("wget -c: broken off and resumed", "wget")
def wget_continued(place):
    data = bytes_of(BIG)
    place.file("big.bin", data)
    url = place.serve().url + "/big.bin"
    copy = place.folder / "big.bin"
    copy.write_bytes(data[:12_345_678])
    said = run("wget", "-c", url, cwd=place.folder).stderr
    expect(b"206 Partial Content" in said, f"wget was not given a part: {said[-600:]}")
    expect(copy.read_bytes() == data, "the copy differs")
    said = run("wget", "-c", url, cwd=place.folder).stderr
    expect(b"416" in said or b"already fully retrieved" in said, f"a second time: {said[-600:]}")
    expect(copy.read_bytes() == data, "the copy was damaged")


@check("wget -N: not fetched again until it changes", "wget")
def wget_timestamps(place):
    place.file("page.html", "one")
    os.utime(place.root / "page.html", (1_600_000_000, 1_600_000_000))
    url = place.serve().url + "/page.html"
    run("wget", "-N", url, cwd=place.folder)
    equal(int((place.folder / "page.html").stat().st_mtime), 1_600_000_000, "the time of the copy")
    said = run("wget", "-N", url, cwd=place.folder).stderr
    expect(b"304 Not Modified" in said, f"it was fetched again: {said[-600:]}")


@check("wget -m: python3.11-doc, byte for byte", "wget")
def wget_mirror(_place):
    if not TREE.is_dir():
        raise Missing("python3.11-doc is not installed")
    import kit
    run(kit.PROJECT / "benches/mirror", "--httpd", kit.OPTIONS.httpd, timeout=300)


@check("wget -r: a listed directory with awkward names", "wget")
def wget_listing(place):
    names = ["plain.txt", "with space.txt", "100%.txt", "a:b.txt", "q?uery.txt", "ha#sh.txt", "&amp;.txt", "<b>.txt",
             "'quote\".txt", "naïve.txt", "sub/deep/file.txt", "-dash.txt", "plus+.txt", "~tilde", "semi;colon"]
    for name in names:
        place.file(f"pub/{name}", f"this is {name}")
    url = place.serve(site="listing = true").url
    copy = place.folder / "copy"
    run("wget", "-r", "-np", "-nH", "-nv", "-e", "robots=off", "--restrict-file-names=nocontrol", "-R", "index.html*",
        "-P", copy, f"{url}/pub/")
    found = sorted(str(path.relative_to(copy / "pub")) for path in copy.rglob("*") if path.is_file())
    equal(found, sorted(names), "names fetched")
    for name in names:
        equal((copy / "pub" / name).read_text(), f"this is {name}", name)


@check("aria2c -x16: 50 MB in sixteen connections", "aria2c")
def aria2(place):
    data = bytes_of(BIG)
    place.file("big.bin", data)
    server = place.serve()
    run("aria2c", "--no-conf", "-x16", "-s16", "-k1M", "--file-allocation=none", "--console-log-level=warn",
        "--summary-interval=0", "-d", place.folder, "-o", "copy", f"{server.url}/big.bin")
    expect((place.folder / "copy").read_bytes() == data, "the copy differs")
    accepted = server.counter("connections_accepted")
    expect(accepted >= 2, f"aria2 made {accepted} connections: nothing was shown")


@check("zsync: only what has changed is fetched", "zsync", "zsyncmake")
def zsync(place):
    data = bytes_of(8_000_000)
    changed = data[:1_000_000] + b"inserted here" + data[1_000_000:4_000_000] + data[4_100_000:]
    place.file("image.bin", changed)
    server = place.serve()
    run("zsyncmake", "-u", f"{server.url}/image.bin", "-o", place.root / "image.bin.zsync", place.root / "image.bin")
    old = place.folder / "old.bin"
    old.write_bytes(data)
    run("zsync", "-i", old, "-o", place.folder / "new.bin", f"{server.url}/image.bin.zsync", cwd=place.folder)
    expect((place.folder / "new.bin").read_bytes() == changed, "the result differs")
    sent = server.counter("bytes_sent")
    expect(sent < 1_000_000, f"{sent} bytes were sent for a change of a few")
    equal(curl(place, "-I", f"{server.url}/image.bin.zsync").fields.get("content-type"), "application/x-zsync",
          "the type of .zsync")


@check("a slow reader does not hold up the others", "curl")
def slow_reader(place):
    place.file("big.bin", bytes_of(BIG))
    place.file("small.txt", "small")
    server = place.serve(top="[timeouts]\nsend = \"60s\"\n")
    slow = threading.Thread(target=lambda: run("curl", "-q", "-sS", "--limit-rate", "1M", "--max-time", "4", "-o",
                                               place.folder / "slow", f"{server.url}/big.bin", status=28))
    slow.start()
    for _ in range(50):
        equal(curl(place, "--max-time", "3", f"{server.url}/small.txt").body, b"small", "meanwhile")
    slow.join()
    copied = (place.folder / "slow").read_bytes()
    expect(copied and bytes_of(BIG).startswith(copied), "what the slow one got differs")
