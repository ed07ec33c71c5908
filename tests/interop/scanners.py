"""What the scanners say that administrators trust: testssl.sh, and sslyze with Mozilla's intermediate configuration.

They run beside the other checks, against a server of their own: testssl.sh mostly waits."""

import json
import os
import subprocess
import sys
import threading

import kit
from kit import find, output, require
from server import Site

SSLYZE = "6.3.1"

# Certificates that Mozilla's configuration knows; Ed25519 is not among them.
HOSTS = {"both.test": ["p256-pkcs8", "rsa-pkcs8"], "p384.test": ["p384"], "rsa.test": ["rsa"]}

# Protocols, standard ciphers, forward secrecy, preferences, defaults, the http head. Without vulnerabilities, for which
# sslyze looks too, the list of each single cipher and the simulated clients: they take three times as long.
QUICK = ["-p", "-s", "-f", "-P", "-S", "-h"]

# What is no fault: our names are in no DNS; and that the client's order of ciphers counts is what Mozilla's configuration
# wants, since it knows whether it has hardware for AES.
NOT_OURS = ("DNS_CAArecord", "cipher_order")

# What testssl.sh must have seen, so that silence does not pass for praise.
SEEN = {"TLS1": "not offered", "TLS1_1": "not offered", "TLS1_2": "offered", "TLS1_3": "offered with final",
        "sessionresumption_ticket": "supported", "cert_chain_of_trust": "passed."}

# Its tests take seconds each, on a machine that does other things at the same time.
TESTSSL_SECONDS = 900

HEADERS = """hsts = "max-age=63072000"
[[site.rule]]
match = "/**"
headers = { "X-Content-Type-Options" = "nosniff", "X-Frame-Options" = "DENY", "Referrer-Policy" = "no-referrer", \
"Content-Security-Policy" = "default-src 'self'" }
"""


class Scanners:
    def __init__(self, setting):
        self.setting, directory = setting, f"{setting.work}/scanned"
        os.mkdir(directory)
        sites = []
        for host, kinds in HOSTS.items():
            certificates = [setting.authority.issue(f"scanned-{host}-{kind}", kind, [host]) for kind in kinds]
            sites.append(Site(directory, host, certificates, setting.large, HEADERS))
            with open(f"{sites[-1].root}/index.html", "w", encoding="ascii") as file:
                file.write("<!doctype html><title>Scan me</title>\n")
        self.server = setting.start("scanned-server", sites)
        self.report = f"{setting.work}/testssl.json"
        self.testssl = self.thread = self.trouble = None
        # Finding it may mean to install it.
        self.thread = threading.Thread(target=self.start, daemon=True)
        self.thread.start()

    def start(self):
        try:
            what = [] if self.setting.full else QUICK
            with open(f"{self.setting.work}/testssl.log", "wb") as log:
                self.testssl = subprocess.Popen(
                    [find("testssl"), "--warnings", "off", "--color", "0", "--quiet", "--ip", "127.0.0.1",
                     "--add-ca", self.setting.authority.root, "--jsonfile", self.report, *what,
                     f"https://both.test:{self.server.port}/"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.setting.work)
            self.testssl.wait(timeout=TESTSSL_SECONDS)
        except (kit.Failed, subprocess.TimeoutExpired) as error:
            self.trouble = error

    def stop(self):
        if self.testssl and self.testssl.poll() is None:
            # It has children of its own.
            os.killpg(self.testssl.pid, 15)
            self.testssl.wait()
        self.server.stop()

    def end(self, checks):
        checks.run("sslyze: Mozilla's intermediate configuration", self.check_sslyze)
        checks.run("testssl.sh has no complaint", self.check_testssl)

    def check_sslyze(self):
        targets = [f"{host}:{self.server.port}{{127.0.0.1}}" for host in HOSTS]
        report = f"{self.setting.work}/sslyze.json"
        out = output([sslyze(), "--mozilla_config=intermediate", "--certinfo_ca_file", self.setting.authority.root,
                      "--json_out", report, *targets], status=None)[0].decode()
        verdicts = out[out.index("COMPLIANCE AGAINST"):].strip()
        require(out.count("OK - Compliant.") == len(HOSTS), verdicts)
        with open(report, encoding="utf-8") as file:
            results = json.load(file)["server_scan_results"]
        for result in results:
            host, scan = result["server_location"]["hostname"], result["scan_result"]
            accepted = {version: sorted(one["cipher_suite"]["name"] for one in
                                        scan[f"tls_1_{version}_cipher_suites"]["result"]["accepted_cipher_suites"])
                        for version in (2, 3)}
            require(len(accepted[3]) == 3, f"{host}, TLS 1.3: {accepted[3]}")
            require(len(accepted[2]) == 3 * len(HOSTS[host]), f"{host}, TLS 1.2: {accepted[2]}")
        return f"{len(HOSTS)} sites compliant"

    def check_testssl(self):
        self.thread.join(TESTSSL_SECONDS)
        if self.trouble:
            raise self.trouble
        with open(self.report, encoding="utf-8") as file:
            findings = json.load(file)
        complaints = [f"{one['id']}: {one['finding']} ({one['severity']})" for one in findings
                      if one["severity"] not in ("OK", "INFO") and not one["id"].startswith(NOT_OURS)]
        require(not complaints, "; ".join(complaints))
        for name, wanted in SEEN.items():
            got = [one["finding"] for one in findings if one["id"].split()[0] == name]
            require(got and all(one.startswith(wanted) for one in got), f"{name}: {got}")
        return f"{len(findings)} findings"


begin = Scanners


def run(_checks, _setting):
    """All is done at the end."""


def sslyze():
    """From the Python index, kept where the other tools of the project are."""
    cache = os.environ.get("HTTPD_CI_CACHE") or os.path.expanduser("~/.cache/httpd-ci")
    place = f"{cache}/sslyze-{SSLYZE}"
    if not os.path.exists(f"{place}/bin/sslyze"):
        os.makedirs(cache, exist_ok=True)
        try:
            import ensurepip  # noqa: F401
        except ImportError:
            kit.install(["python3-venv"])
        output([sys.executable, "-m", "venv", "--clear", place])
        output([f"{place}/bin/pip", "install", "-q", f"sslyze=={SSLYZE}"], seconds=300)
    return f"{place}/bin/sslyze"
