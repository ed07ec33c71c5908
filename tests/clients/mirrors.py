"""Programs that read a tree of files as a repository: apt, git, pip."""

import datetime
import email.utils
import gzip
import hashlib
import os
import time
import zipfile

from kit import check, equal, expect, run


@check("apt: a flat repository, updated, installed from, unchanged and changed", "apt-get", "dpkg-scanpackages", "dpkg-deb")
def apt(place):
    package(place, "1.0")
    server = place.serve(site="listing = true")
    root = place.folder / "apt"
    for folder in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/apt.conf.d", "log"):
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    (root / "etc/sources.list").write_text(f"deb [trusted=yes] {server.url}/debian ./\n")
    settings = {
        "Dir": root, "Dir::State": root / "state", "Dir::State::status": root / "status", "Dir::Cache": root / "cache",
        "Dir::Etc": root / "etc", "Dir::Log": root / "log", "Dir::Etc::sourcelist": root / "etc/sources.list",
        "Dir::Etc::sourceparts": "/dev/null", "APT::Architecture": "amd64", "APT::Architectures::": "amd64",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "", "Acquire::http::Proxy": "false",
        "Acquire::Languages": "none", "Debug::NoLocking": "true",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    configuration = {"APT_CONFIG": "/dev/null", "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}

    def apt_get(*words, cwd=place.folder):
        return run("apt-get", *options, *words, env=configuration, cwd=cwd).stdout.decode()

    said = apt_get("update")
    expect("Get:" in said and "Err:" not in said, said)
    said = apt_get("update")
    expect("Hit:" in said and "Get:" not in said, f"nothing has changed, but: {said}")
    apt_get("download", "httpd-sample")
    fetched = place.folder / "httpd-sample_1.0_all.deb"
    equal(fetched.read_bytes(), (place.root / "debian/httpd-sample_1.0_all.deb").read_bytes(), "the package")
    said = apt_get("install", "-y", "--download-only", "httpd-sample")
    expect((root / "cache/archives/httpd-sample_1.0_all.deb").exists(), said)
    # Broken off: apt goes on where it stopped.
    archive = root / "cache/archives/httpd-sample_1.0_all.deb"
    (root / "cache/archives/partial" / archive.name).write_bytes(archive.read_bytes()[:70_000])
    archive.unlink()
    apt_get("install", "-y", "--download-only", "httpd-sample")
    equal(archive.read_bytes(), fetched.read_bytes(), "the package, resumed")
    # apt asks by date, and dates count seconds: a change in the second of the last one is not told.
    time.sleep(1.1)
    package(place, "2.0")
    said = ""
    for _ in range(50):
        said = apt_get("update")
        if "Get:" in said:
            break
    expect("Get:" in said, f"a changed index is not seen: {said}")
    expect("2.0" in run("apt-cache", *options, "policy", "httpd-sample", env=configuration).stdout.decode(),
           "the new version is not known")


def package(place, version):
    tree = place.folder / f"package{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/share/httpd-sample").mkdir(parents=True)
    (tree / "usr/share/httpd-sample/data").write_bytes(os.urandom(300_000))
    (tree / "DEBIAN/control").write_text(
        f"Package: httpd-sample\nVersion: {version}\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\n"
        "Description: sample\n For a repository in a test.\n")
    to = place.root / "debian"
    to.mkdir(exist_ok=True)
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", tree, to / f"httpd-sample_{version}_all.deb")
    index = run("dpkg-scanpackages", "-m", ".", cwd=to).stdout
    packed = gzip.compress(index, mtime=0)
    sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n"
                   for name, data in (("Packages", index), ("Packages.gz", packed)))
    release = f"Suite: ./\nDate: {email.utils.format_datetime(now())}\nSHA256:\n{sums}"
    for name, data in (("Packages", index), ("Packages.gz", packed), ("Release", release.encode())):
        # As a deploy should: nobody reads half an index.
        (to / f"{name}.new").write_bytes(data)
        (to / f"{name}.new").rename(to / name)


def now():
    return datetime.datetime.now(datetime.timezone.utc)


@check("git: clone and fetch from plain files", "git")
def git(place):
    environment = os.environ | {
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "GIT_TERMINAL_PROMPT": "0"}
    for name in [name for name in environment if name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")]:
        del environment[name]

    def git(*words, cwd=place.folder):
        return run("git", *words, cwd=cwd, env=environment).stdout.decode().strip()

    work, bare = place.folder / "work", place.root / "project.git"
    git("init", "-q", "-b", "main", work)
    for number in range(30):
        (work / f"file{number}").write_text(f"{number}\n" * 500)
        git("add", ".", cwd=work)
        git("commit", "-q", "-m", f"change {number}", cwd=work)
    git("clone", "-q", "--bare", work, bare)
    git("update-server-info", cwd=bare)
    url = place.serve().url + "/project.git"
    git("clone", "-q", url, "copy")
    equal(git("rev-parse", "HEAD", cwd=place.folder / "copy"), git("rev-parse", "HEAD", cwd=work), "what was cloned")
    git("fsck", "--full", cwd=place.folder / "copy")
    (work / "more").write_text("more")
    git("add", ".", cwd=work)
    git("commit", "-q", "-m", "more", cwd=work)
    git("push", "-q", bare, "main", cwd=work)
    git("update-server-info", cwd=bare)
    new = git("rev-parse", "HEAD", cwd=work)
    for _ in range(100):
        git("pull", "-q", cwd=place.folder / "copy")
        if git("rev-parse", "HEAD", cwd=place.folder / "copy") == new:
            return
    expect(False, "a pushed change is never seen")


@check("pip: packages from an index of plain files, and from a listing", "linters")
def pip(place):
    from linters import python
    wheel = place.folder / "httpd_sample-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("httpd_sample.py", "answer = 42\n")
        archive.writestr("httpd_sample-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: httpd-sample\nVersion: 1.0\n")
        archive.writestr("httpd_sample-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("httpd_sample-1.0.dist-info/RECORD", "")
    place.file(f"packages/{wheel.name}", wheel.read_bytes())
    place.file("simple/httpd-sample/index.html",
               f'<!doctype html><title>x</title><a href="../../packages/{wheel.name}">{wheel.name}</a>')
    url = place.serve(site="listing = true").url
    pip = [python(), "-m", "pip", "--isolated", "--disable-pip-version-check", "download", "-q", "--no-deps",
           "--no-cache-dir"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    for number, words in enumerate((["--index-url", f"{url}/simple/"], ["--no-index", "--find-links", f"{url}/packages/"])):
        to = place.folder / f"to{number}"
        run(*pip, *words, "-d", to, "httpd-sample", env=environment)
        equal((to / wheel.name).read_bytes(), wheel.read_bytes(), "the package")
