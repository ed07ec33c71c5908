"""Many full handshakes with every kind of key: not one signature may be bad, not one handshake be lost."""

import json

from kit import output, require
from visits import build_go

COUNT = 2000
PARALLEL = 8


def check(setting, program, kind):
    before = setting.server.counters()
    site = setting.site(f"{kind}.test")
    command = [*program, setting.authority.root, setting.server.port, site.host, PARALLEL, COUNT]
    result = json.loads(output(command, seconds=300)[0])
    failures = result["Failures"]
    require(not failures, f"{len(failures)} of {COUNT} failed, first: {failures[:1]}")
    require(result["Full"] == result["Requests"] == COUNT, f"{result['Full']} handshakes, {result['Requests']} answers")
    require(list(result["Certificates"]) == [site.certificates[0].fingerprint()], "another certificate was shown")
    if before:
        after = setting.server.counters()
        grown = {name: after[name] - before[name] for name in ("handshakes_full", "handshakes_resumed", "handshakes_failed")}
        require(grown == {"handshakes_full": COUNT, "handshakes_resumed": 0, "handshakes_failed": 0}, f"counted {grown}")
    return f"{COUNT} full handshakes"


def run(checks, setting):
    program = build_go("load")(setting.work)
    for kind in ("p256", "p384", "rsa", "ed25519"):
        checks.run(f"{kind}: every signature is good", check, setting, program, kind)
