"""What the checks are made of: their outcome, processes that end in time, tools that are installed where missing."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))

# Debian packages of the tools. Some of them work with a tool that is not asked for by name.
PACKAGES = {
    "curl": ["curl"], "openssl": ["openssl"], "gnutls-cli": ["gnutls-bin"], "tstclnt": ["libnss3-tools"],
    "certutil": ["libnss3-tools"],
    "go": ["golang-go"], "javac": ["default-jdk-headless"], "java": ["default-jdk-headless"], "node": ["nodejs"],
    "nginx": ["nginx-light"], "testssl": ["testssl.sh", "bsdextrautils"],
}

# No single tool needs nearly as long, debug builds on a busy machine included.
TOOL_SECONDS = 120


class Failed(Exception):
    """A check did not hold; says why."""


def require(condition, reason):
    if not condition:
        raise Failed(reason)


class Checks:
    """Counts and prints outcomes. Checks may run in several threads."""

    def __init__(self):
        self.passed, self.failed, self.lock = 0, [], threading.Lock()

    def run(self, name, function, *arguments):
        """Runs one check. What it returns is a remark; what it raises, the reason of its failure."""
        began = time.monotonic()
        try:
            remark, reason = function(*arguments), None
        except Failed as error:
            reason = str(error)
        except subprocess.TimeoutExpired as error:
            reason = f"no end after {error.timeout:.0f} s: {' '.join(map(str, error.cmd))}"
        except Exception as error:  # noqa: BLE001 - whatever it is, the other checks still count
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}:{place.lineno})"
        seconds = time.monotonic() - began
        with self.lock:
            if reason is None:
                self.passed += 1
                print(f"ok    {name}" + (f": {remark}" if remark else "") + f" [{seconds:.1f} s]", flush=True)
            else:
                self.failed.append(name)
                print(f"FAIL  {name}: {reason}", flush=True)

    def summary(self):
        for name in self.failed:
            print(f"failed: {name}")
        print(f"{self.passed} passed, {len(self.failed)} failed")
        return 1 if self.failed else 0


def find(tool):
    """Where a tool is; installs it where it is missing and that is possible."""
    places = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/go/bin"
    path = shutil.which(tool, path=places)
    if path is None and os.geteuid() == 0:
        install(PACKAGES[tool])
        path = shutil.which(tool, path=places)
    require(path, f"{tool} is not installed; on Debian: apt-get install {' '.join(PACKAGES[tool])}")
    return path


INSTALLING = threading.Lock()


def install(packages):
    with INSTALLING:
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", "-q", *command], env=environment, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, check=False)


def output(command, data=b"", seconds=TOOL_SECONDS, status=0, **more):
    """Runs a tool to its end with some input; gives what it wrote to stdout and stderr. `status` None: any will do."""
    command = [str(part) for part in command]
    done = subprocess.run(command, input=data, capture_output=True, timeout=seconds, check=False, **more)
    if status is not None and done.returncode != status:
        raise Failed(f"{os.path.basename(command[0])} ended with {done.returncode}: {tail(done.stderr or done.stdout)}")
    return done.stdout, done.stderr


def tail(text, length=400):
    """The end of an output, as one line."""
    return " / ".join(text.decode(errors="replace").strip()[-length:].splitlines())


class Talk:
    """A tool that is spoken with: its stdin stays open. Its outputs are files, since some write byte by byte."""

    def __init__(self, command, seconds=TOOL_SECONDS):
        self.command, self.deadline = [str(part) for part in command], time.monotonic() + seconds
        self.files = [tempfile.TemporaryFile() for _ in range(2)]
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=self.files[0], stderr=self.files[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for file in self.files:
            file.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

    def so_far(self):
        """What it wrote until now to stdout and stderr."""
        return tuple(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in self.files)

    def say(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait_for(self, condition, what):
        """Waits until the outputs fulfil a condition, and gives them; fails when the tool ends before they do."""
        while True:
            ended = self.process.poll() is not None
            out, err = self.so_far()
            if condition(out, err):
                return out, err
            require(not ended, f"{what} never came: {tail(err or out)}")
            require(time.monotonic() < self.deadline, f"{what} did not come in time: {tail(err or out)}")
            time.sleep(0.01)

    def finish(self):
        """Waits for the end; gives stdout and stderr."""
        self.process.wait(timeout=max(0.1, self.deadline - time.monotonic()))
        return self.so_far()


def wait_until(condition, what, seconds=30):
    """Asks until the answer is true, and gives it."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def replace(path, text, mode=0o644):
    """Puts a file in another's place in one step, as certificate tools do."""
    beside = f"{path}.new"
    with open(beside, "w", encoding="ascii", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(text)
    os.rename(beside, path)


if __name__ == "__main__":
    sys.exit("this is a part of tests/interop/run")
