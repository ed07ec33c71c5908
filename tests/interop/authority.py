"""A certificate authority of our own, by openssl: a root, one below it, and certificates of every kind of key."""

import os
from dataclasses import dataclass

from kit import find, output

# How openssl makes a key, and the form its file has: all that certificate tools write is to be read.
KEYS = {
    "p256": ("ecparam -name prime256v1 -genkey", "SEC1"),
    "p384": ("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384", "PKCS#8"),
    "rsa": ("genrsa -traditional 2048", "PKCS#1"),
    "ed25519": ("genpkey -algorithm Ed25519", "PKCS#8"),
    "p256-pkcs8": ("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256", "PKCS#8"),
    "rsa-pkcs8": ("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048", "PKCS#8"),
}
FIRST_LINES = {
    "SEC1": "-----BEGIN EC PARAMETERS-----", "PKCS#1": "-----BEGIN RSA PRIVATE KEY-----",
    "PKCS#8": "-----BEGIN PRIVATE KEY-----",
}

# What public authorities give out, so that scanners do not frown at the length.
DAYS = 90


@dataclass
class Certificate:
    """A certificate with those that vouch for it, and its key."""
    chain: str
    key: str

    def fingerprint(self):
        """SHA-256 of the certificate itself."""
        text = openssl("x509", "-in", self.chain, "-noout", "-fingerprint", "-sha256").decode()
        return text.split("=")[1].strip().replace(":", "").lower()


class Authority:
    def __init__(self, directory):
        self.directory = directory
        self.root = f"{directory}/root.pem"
        self.middle = f"{directory}/middle.pem"
        os.mkdir(directory)
        for name in ("root", "middle"):
            self.make_key("p256-pkcs8", f"{directory}/{name}.key")
        authority = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
        self.sign("root", "Interop Root", authority, "root")
        self.sign("middle", "Interop Authority", authority, "root")

    def issue(self, name, kind, hosts):
        """A certificate for hosts; files of the same name are replaced in one step."""
        key = f"{self.directory}/{name}.key"
        self.make_key(kind, key)
        names = ",".join(f"DNS:{host}" for host in hosts)
        usage = "digitalSignature,keyEncipherment" if kind.startswith("rsa") else "digitalSignature"
        # Scanners want to be told where revoked certificates are listed, and do not ask there.
        self.sign(name, hosts[0], f"basicConstraints=critical,CA:FALSE\nkeyUsage=critical,{usage}\nsubjectKeyIdentifier=hash\n"
                  "extendedKeyUsage=serverAuth\nauthorityKeyIdentifier=keyid\ncrlDistributionPoints=URI:http://127.0.0.1/crl\n"
                  f"subjectAltName={names}\n", "middle")
        chain = f"{self.directory}/{name}.chain.pem"
        with open(chain, "w", encoding="ascii") as file:
            for part in (f"{self.directory}/{name}.pem", self.middle):
                with open(part, encoding="ascii") as one:
                    file.write(one.read())
        return Certificate(chain, key)

    def make_key(self, kind, path):
        how, form = KEYS[kind]
        text = openssl(*how.split()).decode()
        assert text.startswith(FIRST_LINES[form]), f"openssl {how} gave another form than {form}"
        with open(path, "w", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text)

    def sign(self, name, subject, extensions, by):
        base, signer = f"{self.directory}/{name}", f"{self.directory}/{by}"
        with open(f"{base}.ext", "w", encoding="ascii") as file:
            file.write(extensions)
        request = openssl("req", "-new", "-key", f"{base}.key", "-subj", f"/CN={subject}")
        who = ["-signkey", f"{base}.key"] if by == name else ["-CA", f"{signer}.pem", "-CAkey", f"{signer}.key"]
        # Serial numbers from a file would race where certificates are made in parallel.
        serial = ["-set_serial", f"0x{os.urandom(15).hex()}"]
        openssl("x509", "-req", "-days", str(DAYS), "-extfile", f"{base}.ext", *who, *serial, "-out", f"{base}.pem",
                data=request)


def openssl(*arguments, data=b""):
    return output([find("openssl"), *arguments], data)[0]
