"""Which certificate a client is shown, and what is refused: names, signature schemes, application protocols. RFC 8446, RFC 6066
section 3, RFC 7301."""

import hashlib
import socket
import ssl

from kit import Failed, find, output, require, wait_until
from visits import VERSIONS, Gnutls, counted, s_client

# What is asked for, the site whose certificate it gets, and the site that answers. In a certificate a star is one label
# (RFC 9525 section 6.3), in the name of a site any number.
NAMES = [
    ("p256.test", "p256.test", "p256.test"), ("P384.Test", "p384.test", "p384.test"),
    ("a.wild.test", "*.wild.test", "*.wild.test"), ("A-B.wild.test", "*.wild.test", "*.wild.test"),
    ("a.b.wild.test", None, "*.wild.test"), ("wild.test", None, None), ("unknown.test", None, None), (None, None, None),
]


def shown(server, name, version, alpn=("http/1.1",), ask=None):
    """Fingerprint of the certificate, protocol, answer. The client does not judge the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
    if alpn:
        context.set_alpn_protocols(list(alpn))
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname=name, suppress_ragged_eofs=False) as tls:
            tls.sendall(f"GET /small.txt HTTP/1.1\r\nHost: {ask or name or 'x'}\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while piece := tls.recv(65536):
                answer += piece
            fingerprint = hashlib.sha256(tls.getpeercert(binary_form=True)).hexdigest()
            return fingerprint, tls.selected_alpn_protocol(), answer.partition(b"\r\n\r\n")[2]


def check_name(setting, name, certificate, content, version):
    fingerprint, _, body = shown(setting.server, name, version)
    require(fingerprint == setting.site(certificate).certificates[0].fingerprint(), "another certificate was shown")
    require(body == setting.site(content).small, f"another site answered: {body!r}")


def check_choice(setting, version, schemes, index):
    """A site with an RSA and an ECDSA certificate."""
    site = setting.site("both.test")
    command = s_client(find("openssl"), setting.server, site.host, setting.authority.root, version, *schemes)
    command.remove("-ign_eof")
    text = output(command)[0].decode()
    require("Verify return code: 0 (ok)" in text, "the certificate was not verified")
    got = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN"):text.index("-----END CERTIFICATE-----") + 25])
    require(hashlib.sha256(got).hexdigest() == site.certificates[index].fingerprint(), "the other certificate was shown")


def check_refused(setting, name, version, more, alert):
    """A handshake that must fail, with an alert that says why."""
    before = setting.server.counters()
    command = s_client(find("openssl"), setting.server, name, setting.authority.root, version)
    if "-alpn" in more:
        command[command.index("-alpn"):command.index("-alpn") + 2] = []
    err = output([*command, *more], status=1)[1].decode()
    require(alert in err, f"the client does not report '{alert}': {err.strip()[-300:]}")
    if before:
        wait_until(lambda: setting.server.counters()["handshakes_failed"] == before["handshakes_failed"] + 1,
                   "the server counts a failed handshake")


def check_alpn(setting, version, offered, chosen):
    got = shown(setting.server, "p256.test", version, offered)[1]
    require(got == chosen, f"{got} was chosen")


def check_old(setting, flag, names):
    """Versions that must not be spoken any more, by a client that would."""
    out, err = output([find("openssl"), "s_client", "-connect", f"127.0.0.1:{setting.server.port}", "-servername", "p256.test",
                       flag, "-cipher", "ALL:@SECLEVEL=0"], status=None)
    text = (out + err).decode(errors="replace")
    # Their hellos name no signature schemes, which may be found out before the version is.
    if "alert protocol version" not in text and "alert handshake failure" not in text:
        raise Failed(f"no alert for {names}: {text.strip()[-300:]}")


def check_without_ems(setting):
    """A client that does not know RFC 7627, as OpenSSL before 1.1 does not; new and resumed."""
    gnutls, site = Gnutls(), setting.site("p256.test")
    gnutls.prepare(setting.work)
    before = setting.server.counters()
    got = gnutls.visit(setting.server, site, "1.2:%NO_SESSION_HASH", "/small.txt", setting.authority.root, setting.work)
    require(got == [site.small] * 2, "the body is not the file")
    counted(setting.server, before, 2, 1)


def run(checks, setting):
    checks.run("TLS 1.2, a client without extended master secret is served", check_without_ems, setting)
    for version in VERSIONS:
        label = f"TLS {version}"
        for name, certificate, content in NAMES:
            checks.run(f"{label}, {name or 'no name'} gets the certificate of {certificate or 'the default'}",
                       check_name, setting, name, certificate, content, version)
        checks.run(f"{label}, RSA and ECDSA: ECDSA is preferred", check_choice, setting, version, [], 1)
        rsa = "rsa_pss_rsae_sha256:rsa_pkcs1_sha256"
        checks.run(f"{label}, RSA and ECDSA: a client of RSA alone gets RSA", check_choice, setting, version,
                   ["-sigalgs", f"{rsa}:ECDSA+SHA512" if version == "1.2" else rsa], 0)
        checks.run(f"{label}, RSA and ECDSA: a client of ECDSA alone gets ECDSA", check_choice, setting, version,
                   ["-sigalgs", "ECDSA+SHA256:rsa_pkcs1_sha256" if version == "1.3" else "ECDSA+SHA256"], 1)
        for host, schemes in (("p256.test", rsa), ("rsa.test", "ECDSA+SHA256"), ("ed25519.test", rsa)):
            checks.run(f"{label}, {host} refuses a client of {schemes} alone", check_refused, setting, host, version,
                       ["-sigalgs", schemes], "alert handshake failure")
        checks.run(f"{label}, a client of h2 alone is refused", check_refused, setting, "p256.test", version,
                   ["-alpn", "h2"], "alert no application protocol")
        for offered, chosen in ((("h2", "http/1.1"), "http/1.1"), (("http/1.1",), "http/1.1"), ((), None)):
            checks.run(f"{label}, of {' and '.join(offered) or 'no'} protocols {chosen} is chosen", check_alpn, setting, version,
                       offered, chosen)
    for flag, names in (("-tls1", "TLS 1.0"), ("-tls1_1", "TLS 1.1")):
        checks.run(f"{names} is refused", check_old, setting, flag, names)
