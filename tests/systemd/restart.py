#!/usr/bin/env python3
"""A stand-in for the service manager: it listens on NOTIFY_SOCKET, keeps the descriptors that FDSTORE=1 brings, and
starts the server again with them, as `systemctl restart` does. Clients that come meanwhile have to be answered.

    restart.py HTTPD
"""

import array
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 30
FDS_MAX = 253  # SCM_MAX_FD


class Manager:
    """The half of systemd that a service with a descriptor store sees."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        self.path = os.path.join(folder, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(PATIENCE)
        self.store = []  # (name, fd)
        self.said = []
        self.process = None

    def start(self):
        stored = [(name, os.dup(fd)) for name, fd in self.store]
        names = ":".join(name for name, _ in stored)
        environment = dict(os.environ, NOTIFY_SOCKET=self.path, LISTEN_FDS=str(len(stored)), LISTEN_FDNAMES=names)
        if not stored:
            del environment["LISTEN_FDS"], environment["LISTEN_FDNAMES"]

        def hand_over():
            # Moved up first, so that none is overwritten before it was duplicated.
            moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 500) for _, fd in stored]
            for number, fd in enumerate(moved, start=3):
                os.dup2(fd, number, inheritable=True)
                os.close(fd)

        # The number of the process, which only it knows, has to stand in its environment.
        command = ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0" -c "$1"', self.binary, f"{self.folder}/httpd.toml"]
        self.process = subprocess.Popen(
            command, env=environment, preexec_fn=hand_over, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for _, fd in stored:
            os.close(fd)
        self.until("READY=1")

    def receive(self):
        room = socket.CMSG_SPACE(FDS_MAX * 4)
        text, ancillary, _, _ = self.socket.recvmsg(65536, room)
        fds = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        lines = text.decode().splitlines()
        fields = dict(line.split("=", 1) for line in lines)
        if "FDSTORE" in fields:
            self.keep(fields["FDNAME"], list(fds))
        if "FDSTOREREMOVE" in fields:
            for name, fd in [entry for entry in self.store if entry[0] == fields["FDNAME"]]:
                self.store.remove((name, fd))
                os.close(fd)
        self.said.append(fields)
        return lines

    def keep(self, name, fds):
        assert fds, "FDSTORE=1 came without descriptors"
        assert 0 < len(name) <= 255 and ":" not in name and name.isascii() and name.isprintable(), name
        held = {os.fstat(fd).st_ino for _, fd in self.store}
        for fd in fds:
            # Like systemd, what is there already is not kept twice.
            if os.fstat(fd).st_ino in held:
                os.close(fd)
            else:
                self.store.append((name, fd))

    def until(self, line):
        limit = time.monotonic() + PATIENCE
        while line not in self.receive():
            assert time.monotonic() < limit, f"it did not say {line}"

    def stop(self):
        """Has it drain; it goes by itself."""
        self.process.terminate()
        self.until("STOPPING=1")

    def gone(self):
        assert self.process.wait(PATIENCE) == 0


def configure(folder, port, more=""):
    os.makedirs(f"{folder}/root", exist_ok=True)
    with open(f"{folder}/root/index.html", "w") as file:
        file.write("text")
    for part in (folder, f"{folder}/root"):
        os.chmod(part, 0o755)
    with open(f"{folder}/httpd.toml", "w") as file:
        file.write(
            f'[server]\nworkers = 2\ncontrol = "{folder}/control"\n[log]\naccess = "off"\n'
            f'[[listen]]\naddress = "127.0.0.1:{port}"\n{more}[[site]]\nroot = "{folder}/root"\n'
        )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(connection):
    connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


def answer(connection):
    text = b""
    while piece := connection.recv(4096):
        text += piece
    return text


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
    connection.settimeout(PATIENCE)
    return connection


class Load:
    """Asks again and again until told to stop, and remembers what went wrong."""

    def __init__(self, port):
        self.port, self.goes_on, self.count, self.failures = port, True, 0, []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while self.goes_on:
            try:
                with connect(self.port) as connection:
                    ask(connection)
                    text = answer(connection)
                    if not text.startswith(b"HTTP/1.1 200"):
                        self.failures.append(f"answered {text[:60]!r}")
            except OSError as error:
                self.failures.append(str(error))
            self.count += 1

    def stop(self):
        self.goes_on = False
        self.thread.join()


def main():
    binary = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="httpd-restart-") as folder:
        manager = Manager(binary, folder)
        try:
            scenes(manager, folder)
        finally:
            # What a failure leaves behind; its workers end with it.
            if manager.process and manager.process.poll() is None:
                manager.process.kill()


def scenes(manager, folder):
    port, other = free_port(), free_port()
    configure(folder, port, f'[[listen]]\naddress = "127.0.0.1:{other}"\n')
    manager.start()
    assert len(manager.store) == 4, f"two workers at two addresses, but {manager.store}"

    # A restart with clients in the queue: they came when nobody accepted any more.
    for times in range(1, 4):
        manager.stop()
        manager.gone()
        waiting = [connect(port) for _ in range(50)]
        for connection in waiting:
            ask(connection)
        manager.start()
        for connection in waiting:
            assert answer(connection).startswith(b"HTTP/1.1 200"), "who waited was not answered"
            connection.close()
        assert len(manager.store) == 4, f"after {times} restarts {len(manager.store)} listeners are kept"

    # Restarts under load: nobody notices.
    loads = [Load(port) for _ in range(4)]
    for _ in range(3):
        time.sleep(0.3)
        manager.stop()
        manager.gone()
        manager.start()
    time.sleep(0.3)
    for load in loads:
        load.stop()
    failures = [failure for load in loads for failure in load.failures]
    assert not failures, failures[:5]

    # An address that is no longer configured is taken out of the store; its port is free.
    configure(folder, port)
    manager.process.send_signal(1)
    manager.until("RELOADING=1")
    assert "MONOTONIC_USEC" in manager.said[-1]
    manager.until("READY=1")
    assert len(manager.store) == 2, manager.store
    manager.stop()
    manager.gone()
    for _, fd in manager.store:
        os.close(fd)
    print(f"restarts: 150 waited and were answered, {sum(load.count for load in loads)} came meanwhile, none was refused")


if __name__ == "__main__":
    main()
