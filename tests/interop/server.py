"""The servers under test: httpd, and nginx as the reference that tells a client's fault from ours."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import time

from kit import Failed, find, output, require, tail, wait_until

# As large as the large body of the benchmarks, of a length that divides into no record size.
LARGE_BYTES = 5_976_883
WORKERS = 2


class Site:
    """A name, its certificates, and what it serves."""

    def __init__(self, directory, host, certificates, large, more=""):
        self.host, self.certificates, self.more = host, certificates, more
        self.name = host or "default"
        self.root = f"{directory}/{self.name.replace('*', '_')}"
        os.mkdir(self.root)
        self.small = f"this is {self.name}\n".encode()
        with open(f"{self.root}/small.txt", "wb") as file:
            file.write(self.small)
        os.link(large.path, f"{self.root}/large.bin")


class Large:
    """A large body."""

    def __init__(self, directory):
        self.path = f"{directory}/large.bin"
        # The same bytes every time, and none of them twice in a row of records.
        self.body = hashlib.shake_256(b"interop").digest(LARGE_BYTES)
        self.sha256 = hashlib.sha256(self.body).hexdigest()
        with open(self.path, "wb") as file:
            file.write(self.body)


class Server:
    """A running server with one https port."""

    process = port = None
    # Whether sessions can be resumed without tickets.
    has_session_cache = False

    def stop(self):
        """Ends it in good order; gives its exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


class Httpd(Server):
    def __init__(self, binary, directory, sites):
        self.binary, self.directory = binary, directory
        self.config, self.log = f"{directory}/httpd.toml", f"{directory}/httpd.log"
        with open(self.config, "w", encoding="ascii") as file:
            file.write(
                f'[server]\nworkers = {WORKERS}\npin = false\ncontrol = "{directory}/control.sock"\n'
                f'[log]\naccess = "off"\n[cache]\ndir = ""\n[[listen]]\naddress = "127.0.0.1:0"\ntls = true\n')
            for site in sites:
                host = f'host = "{site.host}"\n' if site.host else ""
                file.write(f'[[site]]\n{host}root = "{site.root}"\n')
                file.write(site.more)
                for certificate in site.certificates:
                    file.write(f'[[site.certificate]]\ncert = "{certificate.chain}"\nkey = "{certificate.key}"\n')
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([binary, "-c", self.config], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.port = wait_until(self.serving_port, "httpd serves")
        except Failed as error:
            self.stop()
            raise Failed(f"{error}: {tail(self.log_text())}") from None

    def serving_port(self):
        require(self.process.poll() is None, f"httpd ended with {self.process.returncode}: {tail(self.log_text(), 2000)}")
        try:
            status = self.status()
        except Failed:
            return None
        return int(status["listeners"][0]["address"].rsplit(":", 1)[1]) if status["state"] == "serving" else None

    def status(self):
        return json.loads(output([self.binary, "status", "-c", self.config, "--json"], seconds=10)[0])

    def counters(self):
        return self.status()["counters"]

    def log_text(self):
        with open(self.log, "rb") as file:
            return file.read()

    def reload(self):
        """Sends SIGHUP and waits for its end; gives what status says of it."""
        before = self.status()["last_reload"]
        # Its time is told in whole seconds: two reloads within one could not be told apart.
        while before and int(time.time()) <= before["at"]:
            time.sleep(0.05)
        self.process.send_signal(signal.SIGHUP)

        def ended():
            status = self.status()
            return status["last_reload"] if status["last_reload"] != before and status["state"] == "serving" else None
        return wait_until(ended, "the reload ends")


class Nginx(Server):
    has_session_cache = True

    def __init__(self, directory, sites, default):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        config = f"{directory}/nginx.conf"
        with open(config, "w", encoding="ascii") as file:
            file.write(f"daemon off; worker_processes {WORKERS}; pid {directory}/nginx.pid; error_log {directory}/nginx.log;\n"
                       "events {}\nhttp { access_log off; ssl_session_cache shared:a:1m; ssl_protocols TLSv1.2 TLSv1.3;\n")
            for site in sites:
                also = "default_server" if site is default else ""
                file.write(f"server {{ listen 127.0.0.1:{self.port} ssl {also}; root {site.root}; "
                           f"server_name {site.host or '_'};\n")
                for one in site.certificates:
                    file.write(f"ssl_certificate {one.chain}; ssl_certificate_key {one.key};\n")
                file.write("}\n")
            file.write("}\n")
        self.process = subprocess.Popen([find("nginx"), "-c", config], stdin=subprocess.DEVNULL)
        wait_until(self.answers, "nginx serves")

    def answers(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def counters(self):
        return None
