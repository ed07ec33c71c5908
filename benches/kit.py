"""What the scripts beside this file share: a server as a child process, and what /proc tells of it."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
HTTPD = PROJECT / "target/release/httpd"
# Debian's python3.11-doc: some thousand files of a real documentation site.
TREE = Path("/usr/share/doc/python3.11/html")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def copy_tree(to):
    """The documentation with symlinks resolved: the package has some that lead out of the tree."""
    shutil.copytree(TREE, to, ignore_dangling_symlinks=True)
    # Servers that give up root must still reach it.
    Path(to).chmod(0o755)


def large_file():
    """5.7 MB, as examples/run makes it."""
    return b"".join(b"%d\n" % number for number in range(1000000, 1712500))


def temporary(prefix):
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o755)
    return directory


class Child:
    """A server started by a script, and ended by it: by process id, never by name."""

    def __init__(self, command, directory, port, core=None):
        self.output = Path(directory) / "output"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=directory,
                preexec_fn=core is not None and (lambda: os.sched_setaffinity(0, {core})) or None)
        self.pid = self.process.pid
        deadline = time.monotonic() + 15
        while True:
            if self.process.poll() is not None:
                sys.exit(f"{command[0]} ended at start with {self.process.returncode}: {self.last_words()}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    self.stop()
                    sys.exit(f"{command[0]} does not listen on port {port}: {self.last_words()}")
                time.sleep(0.05)

    def last_words(self):
        lines = self.output.read_text(errors="replace").split("\n")
        return " | ".join(line.strip() for line in lines if line.strip())[-600:]

    def stop(self, seconds=10):
        """Asks it to end, and returns its exit status; kills it when it does not listen."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    def cpu_seconds(self, ended=False):
        """User and system time of the process and all its descendants, threads included; with `ended` also that of
        children that were waited for."""
        return sum(process_seconds(pid, ended) for pid in [self.pid, *descendants(self.pid)])


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def descendants(pid):
    return [other for child in children(pid) for other in (child, *descendants(child))]


def process_seconds(pid, ended=False):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15 if ended else 13])) / os.sysconf("SC_CLK_TCK")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
