"""Certificates that change while the server is busy: nobody notices but those who look at the certificate."""

import json
import os
import time

import names
from kit import Talk, output, replace, require, wait_until
from server import Site
from sessions import Connection
from visits import bodies, build_go

# At full speed, and still with a connection of each sort on every worker.
PARALLEL = 12
# Long enough for thousands of handshakes before and after a change.
SECONDS_AROUND = 2
# A file that changed is looked at every few seconds; loading and a new generation take some more.
NOTICE_SECONDS = 30


class Unattended:
    """A server of its own whose certificate file is replaced without a signal. It waits while others work."""

    def __init__(self, setting):
        self.setting = setting
        self.certificate = setting.authority.issue("unattended", "p256", ["unattended.test"])
        os.mkdir(f"{setting.work}/unattended-site")
        site = Site(f"{setting.work}/unattended-site", "unattended.test", [self.certificate], setting.large)
        self.server = setting.start("unattended", [site])
        self.before = self.certificate.fingerprint()
        require(names.shown(self.server, "unattended.test", "1.3")[0] == self.before, "another certificate was shown")
        swap(setting, "unattended", "p256", self.certificate, "unattended.test")
        self.began = time.monotonic()

    def end(self, checks):
        checks.run("a certificate that changes without a signal is noticed", self.check)

    def stop(self):
        self.server.stop()

    def check(self):
        wanted = self.certificate.fingerprint()
        require(wanted != self.before, "the file was not replaced")
        left = max(1, NOTICE_SECONDS - (time.monotonic() - self.began))
        wait_until(lambda: names.shown(self.server, "unattended.test", "1.3")[0] == wanted, "the new certificate is shown", left)
        require(self.server.status()["last_reload"]["succeeded"], "status does not say so")


def swap(setting, name, kind, certificate, host):
    """Another certificate and key, put in place as certificate tools do: one file after the other."""
    new = setting.authority.issue(f"{name}-next", kind, [host])
    for source, target, mode in ((new.chain, certificate.chain, 0o644), (new.key, certificate.key, 0o600)):
        with open(source, encoding="ascii") as file:
            replace(target, file.read(), mode)


def check_rotation(setting, load):
    """New certificates by SIGHUP under load at full speed, with a download that lasts longer than all of it."""
    server, site = setting.server, setting.site("p256.test")
    certificate, old = site.certificates[0], site.certificates[0].fingerprint()
    with Connection(setting, "1.3") as slow, Talk(
            [*load, setting.authority.root, server.port, site.host, PARALLEL, "mixed"]) as talk:
        slow.ask("/large.bin")
        part = slow.tls.recv(1 << 14)
        time.sleep(SECONDS_AROUND)
        swap(setting, "rotation", "p256", certificate, site.host)
        new = certificate.fingerprint()
        reload = server.reload()
        done = time.time()
        require(reload["succeeded"], f"the reload failed: {reload['reason']}")
        time.sleep(SECONDS_AROUND)
        talk.process.stdin.close()
        result = json.loads(talk.finish()[0])
        require(bodies(part + slow.all()) == [setting.large.body], "the download that was running is not the file")
    failures, seen = result["Failures"], result["Certificates"]
    require(not failures, f"{len(failures)} failures, first: {failures[:3]}")
    require(set(seen) == {old, new}, f"{len(seen)} certificates were shown, not the old one and the new one")
    late = seen[old]["Last"] - done
    require(late < 0, f"{late:.3f} s after the reload was said to be done the old certificate was still shown")
    listed = server.status()["certificates"]
    require(len(listed) == sum(len(site.certificates) for site in setting.sites), "status does not list every certificate")
    for one in listed:
        require(one["names"] and one["issuer"] == "Interop Authority" and one["not_after"] > done, f"status lists {one}")
    return (f"{result['Full']} full and {result['Resumed']} resumed handshakes, {result['Requests']} requests, none failed, "
            f"{result['SentAgain']} sent again on a new connection")


def check_refused(setting, what, spoil):
    """A reload that must not happen: the old certificate stays, and why is said in status and log."""
    server, site = setting.server, setting.site("p384.test")
    certificate = site.certificates[0]
    with open(certificate.key, encoding="ascii") as file:
        key = file.read()
    before, generation = certificate.fingerprint(), server.status()["generation"]
    said = len(server.log_text())
    replace(certificate.key, spoil(key), 0o600)
    try:
        reload = server.reload()
        require(not reload["succeeded"], "it was accepted")
        for where, text in (("status", reload["reason"]), ("the log", server.log_text()[said:].decode())):
            require(certificate.key in text or certificate.chain in text, f"{where} does not name the file: {text!r}")
            require(what in text, f"{where} does not say '{what}': {text!r}")
        require(server.status()["generation"] == generation, "there is a new generation")
        for version in ("1.2", "1.3"):
            shown, _, body = names.shown(server, site.host, version)
            require(shown == before and body == site.small, "the old certificate is not served any more")
    finally:
        replace(certificate.key, key, 0o600)
    require(server.reload()["succeeded"], "repaired, it is still refused")


def another_key(_):
    return output(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"])[0].decode()


begin = Unattended


def run(checks, setting):
    if not setting.server.counters():
        return
    checks.run("certificates change by SIGHUP under load", check_rotation, setting, build_go("load")(setting.work))
    checks.run("a key of another certificate is refused by SIGHUP", check_refused, setting, "does not belong", another_key)
    checks.run("a key file cut short is refused by SIGHUP", check_refused, setting, "key", lambda key: key[:len(key) // 2])
