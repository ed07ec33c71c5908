"""Chromium: what a person sees, in a window and on a phone, by day and by night."""

import html
import json
import re
import shutil
import struct

import kit
from kit import check, equal, expect, run

# Without these it looks for its maker's hosts at every start; without a sandbox, because root may have none.
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
         "--disable-dev-shm-usage", "--virtual-time-budget=4000"]
DARK = "--blink-settings=preferredColorScheme=0"
# Headless Chromium makes no window narrower than 500 pixels: a phone is a frame in a wider one.
PHONE = 390

# A page that measures others in frames as wide as a phone: what is wider than its frame must be scrolled sideways.
PROBE = """<!doctype html><meta charset="utf-8"><title>probe</title><body><script>
const paths = PATHS, found = {};
const look = async path => {
  const frame = document.createElement("iframe");
  frame.style = "width:390px;height:800px;border:0";
  const loaded = new Promise(done => frame.onload = done);
  frame.src = path;
  document.body.append(frame);
  await loaded;
  const page = frame.contentDocument;
  const button = page.querySelector("#questions button");
  if (button) {
    const answer = page.querySelector("#answer");
    const answered = new Promise(done => new MutationObserver(
      () => answer.textContent.includes("\\n") && done()).observe(answer, { childList: true }));
    button.click();
    await answered;
  }
  found[path] = {
    width: page.documentElement.scrollWidth, title: page.title, sheets: page.styleSheets.length,
    broken: [...page.images].filter(image => !image.naturalWidth).map(image => image.src),
    rows: page.querySelectorAll("tbody tr").length, answer: page.querySelector("#answer")?.textContent ?? null,
    font: frame.contentWindow.getComputedStyle(page.body).fontFamily,
  };
  frame.remove();
};
(async () => {
  for (const path of paths) await look(path);
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(found);
  document.body.replaceChildren(result);
})();
</script>"""


def serve(place):
    shutil.copytree(kit.PROJECT / "examples/site", place.root, dirs_exist_ok=True)
    place.file("large.bin", kit.bytes_of(2_000_000))
    for number, name in enumerate(["A file with a long name, as people who release software like to give-1.2.3~rc4_amd64.deb",
                                   "short", "naïve café.txt", "x" * 120, "<script>alert(1)</script>", "a&b.html"]):
        place.file(f"list/{name}", kit.bytes_of(10 ** (number + 1)))
    (place.root / "list/folder/below").mkdir(parents=True)
    return place.serve(site='listing = true\n[site.error_pages]\n404 = "/404.html"')


@check("Chromium: the example site, a listing and the error page, as a program sees them", "chromium")
def measured(place):
    server = serve(place)
    paths = ["/", "/guide/", "/downloads/", "/list/", "/list/folder/", "/no-such-page", "/list/?sort=size&order=desc"]
    place.file("probe.html", PROBE.replace("PATHS", json.dumps(paths)))
    done = chromium(place, "--dump-dom", f"{server.url}/probe.html")
    result = re.search(r'<pre id="result">(.*)</pre>', done.stdout.decode(errors="replace"))
    expect(result, f"the page did not measure: {done.stdout[-500:]} {done.stderr[-500:]}")
    found = json.loads(html.unescape(result.group(1)))
    for path in paths:
        seen = found[path]
        equal(seen["broken"], [], f"images of {path}")
        expect(seen["width"] <= PHONE, f"{path} is {seen['width']} pixels wide on a phone of {PHONE}")
        expect(seen["title"], f"{path} has no title")
        expect("Times" not in seen["font"], f"{path} is unstyled: {seen['font']}")
    expect("HTTP" in found["/"]["answer"] or "200" in found["/"]["answer"], f"the script: {found['/']['answer']!r}")
    equal(found["/list/"]["rows"], 8, "rows of the listing")
    equal(found["/no-such-page"]["title"], "Not found", "the error page")


@check("Chromium: https and pictures of every page", "chromium")
def pictures(place):
    server = serve(place)
    pages = {"site": "/", "guide": "/guide/", "listing": "/list/", "missing": "/no-such-page"}
    for name, path in pages.items():
        place.file(f"phone-{name}.html", f'<!doctype html><style>body{{margin:0;background:#777}}iframe{{width:{PHONE}px;'
                                         f'height:900px;border:0;display:block}}</style><iframe src="{path}"></iframe>')
    for shade, flags in (("light", []), ("dark", [DARK])):
        for name, path in pages.items():
            shoot(place, f"{name}-{shade}", f"{server.url}{path}", 1200, 900, *flags)
            if name in ("site", "listing"):
                shoot(place, f"{name}-{shade}-phone", f"{server.url}/phone-{name}.html", 500, 900, *flags)
    secure = place.serve(listen='[[listen]]\naddress = "127.0.0.1:0"\ntls = true\n',
                         sites="[[site.certificate]]\nself_signed = true\n")
    said = chromium(place, "--ignore-certificate-errors", "--dump-dom", f"{secure.url}/guide/").stdout
    expect(b"</footer>" in said or b"</main>" in said, f"by https: {said[-300:]}")


def chromium(place, *words):
    profile = place.folder / "profile"
    return run("chromium", *FLAGS, f"--user-data-dir={profile}", *words, timeout=60)


def shoot(place, name, url, width, height, *flags):
    """Takes a picture, and checks that it is one and not of a single colour."""
    path = place.folder / f"{name}.png"
    chromium(place, *flags, f"--window-size={width},{height}", f"--screenshot={path}", url)
    picture = path.read_bytes()
    equal(struct.unpack(">II", picture[16:24]), (width, height), f"size of {name}")
    # An empty page of this size takes some 5 kB.
    expect(len(picture) > 8_000, f"{name} seems to be empty: {len(picture)} bytes")
    if kit.OPTIONS.screenshots:
        kit.OPTIONS.screenshots.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kit.OPTIONS.screenshots)
