"""Features of sites, as clients see them: hosts, redirects, passwords, addresses, pages for errors."""

import concurrent.futures
import json

import kit
from administration import free_port
from kit import check, curl, equal, expect, run, until


@check("site: virtual hosts, exact, wildcard and default", "curl")
def hosts(place):
    for name in ("a", "b", "wild"):
        (place.folder / name).mkdir()
        (place.folder / name / "index.html").write_text(name)
    place.file("index.html", "default")
    sites = ('[[site]]\nhost = "a.test"\nroot = "a"\n[[site]]\nhost = ["b.test", "[::1]"]\nroot = "b"\n'
             '[[site]]\nhost = "*.a.test"\nroot = "wild"\n')
    server = place.serve(sites=sites)
    for host, expected in (("a.test", "a"), ("A.Test:99", "a"), ("a.test.", "a"), ("b.test", "b"), ("[::1]:8080", "b"),
                           ("x.a.test", "wild"), ("x.y.a.test", None), ("other.test", "default"), ("127.0.0.1", "default")):
        body = curl(place, "-H", f"Host: {host}", server.url).body.decode()
        expect(expected in (None, body), f"{host}: {body} instead of {expected}")
    absolute = kit.raw(server.port, b"GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
    expect(absolute.endswith(b"\r\n\r\nb"), f"the host of the target counts: {absolute}")


@check("site: fallback for single-page apps, clean URLs, pages for errors", "curl")
def pages(place):
    place.file("index.html", "app")
    place.file("about.html", "about")
    place.file("assets/app.js", "js")
    for name in ("plain", "clean"):
        (place.folder / name).mkdir()
    (place.folder / "clean/about.html").write_text("about")
    (place.folder / "plain/404.html").write_text("sorry")
    (place.folder / "plain/403.html").write_text("forbidden")
    sites = ('[[site]]\nhost = "clean.test"\nroot = "clean"\nclean_urls = true\n'
             '[[site]]\nhost = "plain.test"\nroot = "plain"\n[site.error_pages]\n404 = "/404.html"\n403 = "/403.html"\n'
             '[[site.rule]]\nmatch = "/private/**"\ndeny = "127.0.0.1"\n')
    server = place.serve(site='fallback = "/index.html"', sites=sites)
    app = curl(place, f"{server.url}/some/route?x=1")
    equal((app.status, app.body), (200, b"app"), "the fallback")
    equal(curl(place, f"{server.url}/assets/app.js").body, b"js", "a file beside it")
    equal(curl(place, "-X", "POST", f"{server.url}/some/route").status, 405, "POST to the fallback")
    clean = curl(place, "-H", "Host: clean.test", f"{server.url}/about")
    equal((clean.status, clean.body, clean.fields.get("content-type")), (200, b"about", "text/html; charset=utf-8"), "clean")
    missing = curl(place, "-H", "Host: plain.test", f"{server.url}/nope")
    equal((missing.status, missing.body), (404, b"sorry"), "the page for 404")
    forbidden = curl(place, "-H", "Host: plain.test", f"{server.url}/private/x")
    equal((forbidden.status, forbidden.body), (403, b"forbidden"), "the page for 403")
    head = curl(place, "-I", "-H", "Host: plain.test", f"{server.url}/nope")
    equal((head.status, head.fields.get("content-length")), (404, "5"), "HEAD of it")


@check("site: redirects by rule, https_redirect", "curl")
def redirects(place):
    place.file("index.html", "secure")
    rules = ('[[site.rule]]\nmatch = "/old/**"\nredirect = "https://new.test{path}?{query}"\nstatus = 308\n'
             '[[site.rule]]\nmatch = "/here"\nredirect = "/there"\n'
             '[[site]]\nhost = "secure.test"\nroot = "root"\nhttps_redirect = true\nhsts = "max-age=60"\n'
             "[[site.certificate]]\nself_signed = true\n")
    # https_redirect names the port of the configuration, so it must not be 0.
    listen = ('[[listen]]\naddress = "127.0.0.1:0"\n'
              f'[[listen]]\naddress = "127.0.0.1:{free_port()}"\ntls = true\n')
    server = place.serve(sites=rules, listen=listen)
    old = curl(place, f"{server.url}/old/a%20b?x=1&y=%22")
    equal((old.status, old.fields.get("location")), (308, "https://new.test/old/a%20b?x=1&y=%22"), "the rule")
    here = curl(place, f"{server.url}/here")
    equal((here.status, here.fields.get("location")), (307, "/there"), "without a status")
    split = curl(place, f"{server.url}/old/%0d%0aSet-Cookie:%20x")
    expect("set-cookie" not in split.fields, f"a field was forged: {split}")
    port, secure = server.urls[0].rsplit(":", 1)[1], server.urls[1].rsplit(":", 1)[1]
    plain = curl(place, "-H", "Host: secure.test", f"{server.url}/a?b=c")
    location = plain.fields.get("location", "")
    expect(plain.status in (301, 308) and location.startswith("https://secure.test"), f"https_redirect: {plain}")
    expect(location.endswith("/a?b=c"), f"https_redirect loses the rest: {location}")
    followed = curl(place, "-k", "-L", "--resolve", f"secure.test:{port}:127.0.0.1",
                    "--resolve", f"secure.test:{secure}:127.0.0.1", f"http://secure.test:{port}/")
    equal((followed.status, followed.body), (200, b"secure"), "followed by curl")
    equal(followed.fields.get("strict-transport-security"), "max-age=60", "HSTS")


@check("site: passwords of htpasswd -B; checks hold up nobody", "htpasswd", "curl")
def passwords(place):
    place.file("index.html", "public")
    place.file("staff/index.html", "staff")
    users = place.folder / "users"
    run("htpasswd", "-c", "-b", "-B", "-C", "5", users, "ann", "pass:word")
    run("htpasswd", "-b", "-B", "-C", "12", users, "slow", "geheim-ü")
    rule = f'[[site.rule]]\nmatch = "/staff/**"\nauth = {{ realm = "the staff", users = "{users}" }}\n'
    log = place.folder / "access.log"
    server = place.serve(sites=rule, log=f'access = "{log}"\nformat = "json"')
    url = f"{server.url}/staff/"
    asked = curl(place, url)
    equal(asked.status, 401, "without a password")
    expect('realm="the staff"' in asked.fields.get("www-authenticate", ""), f"the challenge: {asked}")
    equal(curl(place, "-u", "ann:pass:word", url).body, b"staff", "with the right one")
    for user in ("ann:wrong", "ann:", "nobody:pass:word", "slow:geheim", ":"):
        equal(curl(place, "-u", user, url).status, 401, user)
    equal(curl(place, "-H", "Authorization: Basic !!!!", url).status, 401, "not base64")
    equal(curl(place, "-H", "Authorization: Bearer x", url).status, 401, "another scheme")
    # A second's worth of hashing for each of these, all wrong; meanwhile others are served at once.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        checks = [pool.submit(run, "curl", "-q", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-u", f"slow:{number}", url,
                              timeout=120) for number in range(4)]
        times = [float(run("curl", "-q", "-sS", "-o", "/dev/null", "-w", "%{time_total}", server.url).stdout)
                 for _ in range(20)]
        pending = sum(not check.done() for check in checks)
        expect(pending > 0, "the checks were over too soon to show anything")
        equal({check.result().stdout for check in checks}, {b"401"}, "wrong passwords of a slow hash")
    expect(sorted(times)[10] < 0.3, f"others waited: {times}")
    equal(curl(place, "-u", "slow:geheim-ü", url).status, 200, "the right password of a slow hash")
    first = json.loads(until("the log has the user", lambda: next(
        (line for line in log.read_text().splitlines() if '"user":"ann"' in line and '"status":200' in line), None)
        if log.exists() else None))
    equal(first["user"], "ann", "the user in the log")
    expect("pass:word" not in log.read_text(), "a password is in the log")


@check("site: allow and deny by address", "curl")
def addresses(place):
    for name in ("open", "closed", "inner", "except"):
        place.file(f"{name}/x", "x")
    rules = ('[[site.rule]]\nmatch = "/closed/**"\ndeny = ["127.0.0.0/8"]\n'
             '[[site.rule]]\nmatch = "/inner/**"\nallow = ["10.0.0.0/8"]\n'
             '[[site.rule]]\nmatch = "/except/**"\nallow = ["127.0.0.0/8"]\ndeny = ["127.0.0.1"]\n'
             '[[site.rule]]\nmatch = "/open/**"\nallow = ["127.0.0.1", "::1"]\n')
    server = place.serve(sites=rules)
    for name, status in (("closed", 403), ("inner", 403), ("except", 403), ("open", 200)):
        equal(curl(place, f"{server.url}/{name}/x").status, status, name)
    for path in ("/closed/./x", "//closed/x", "/%63losed/x", "/open/../closed/x", "/closed//x"):
        equal(curl(place, "--path-as-is", server.url + path).status, 403, path)
    # From elsewhere on the same machine.
    equal(curl(place, "--interface", "127.0.0.2", f"{server.url}/except/x").status, 200, "127.0.0.2")


@check("site: a rule's fields, a listing in JSON, hidden names, names sorted", "curl")
def details(place):
    place.file("assets/a.css", "a{}")
    place.file(".hidden", "secret")
    place.file(".well-known/x", "known")
    place.file("sub/.git/config", "secret")
    rules = '[[site.rule]]\nmatch = "/assets/**"\nheaders = { "Cache-Control" = "max-age=60", "X-A" = "b" }\n'
    server = place.serve(site="listing = true", sites=rules)
    style = curl(place, f"{server.url}/assets/a.css")
    equal((style.fields.get("cache-control"), style.fields.get("x-a")), ("max-age=60", "b"), "the rule's fields")
    not_modified = curl(place, "-H", f"If-None-Match: {style.fields['etag']}", f"{server.url}/assets/a.css")
    equal((not_modified.status, not_modified.fields.get("cache-control")), (304, "max-age=60"), "on 304 too")
    equal(curl(place, f"{server.url}/.hidden").status, 404, "a hidden file")
    equal(curl(place, f"{server.url}/sub/.git/config").status, 404, "a file below a hidden name")
    equal(curl(place, f"{server.url}/.well-known/x").body, b"known", ".well-known")
    listing = json.loads(curl(place, "-H", "Accept: application/json", server.url).body)
    names = [entry["name"] for entry in listing["entries"]]
    equal(names, [".well-known", "assets", "sub"], "the listing")
    page = curl(place, server.url)
    expect("accept" in page.fields.get("vary", "").lower(), f"one URL, two forms, no Vary: {page.fields}")


@check("site: a changed file, a deploy by symlink", "curl")
def deploys(place):
    for name in ("one", "two"):
        release = place.folder / "releases" / name
        release.mkdir(parents=True)
        (release / "index.html").write_text(name)
    place.root.rmdir()
    place.root.symlink_to("releases/one")
    server = place.serve()
    equal(curl(place, server.url).body, b"one", "the first release")
    new = place.folder / "new"
    new.symlink_to("releases/two")
    new.rename(place.root)
    until("the second release is served", lambda: curl(place, server.url).body == b"two")
    (place.folder / "releases/two/index.html").write_text("three")
    until("the changed file is served", lambda: curl(place, server.url).body == b"three")
    (place.folder / "releases/two/index.html").unlink()
    until("the deleted file is gone", lambda: curl(place, server.url).status in (403, 404))
