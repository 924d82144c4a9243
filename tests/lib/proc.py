"""Processes of the tests: started here, bounded in time, ended by pid, cleaned up on every way out.

Everything that must be undone is pushed on `cleanup`; `proof.Proof` runs it when the proof ends, also after
an exception, a timeout, SIGTERM or SIGINT.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
LOOPBACK = "127.0.0.1"

cleanup = contextlib.ExitStack()


class Failed(Exception):
    """A command, a wait or a comparison that did not come out as it must."""


def free_ports(count=1):
    """Ports that nobody listened on a moment ago, below the range the kernel gives to clients."""
    ports, sockets = [], []
    for port in range(20000 + (os.getpid() * 37) % 8000, 32000):
        probe = socket.socket()
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            probe.close()
            continue
        sockets.append(probe)
        ports.append(port)
        if len(ports) == count:
            break
    for probe in sockets:
        probe.close()
    return ports


def scratch(prefix="tailrace-test-"):
    """A folder that goes when the proof ends. TAILRACE_TEST_DIR says where (needs O_DIRECT)."""
    base = os.environ.get("TAILRACE_TEST_DIR") or "/var/tmp"
    path = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    cleanup.callback(lambda: None if os.environ.get("KEEP") else shutil.rmtree(path, ignore_errors=True))
    return path


def wait_for(what, condition, timeout, every=0.02):
    """Waits until `condition()` is true and returns it."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"not within {timeout} s: {what}")
        time.sleep(every)


def run(args, stdin=None, timeout=120, check=True, env=None):
    """Runs a command to its end; its output as bytes."""
    args = [str(a) for a in args]
    process = start(args, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        end(process, signal.SIGKILL)
        out, err = process.communicate()
        raise Failed(f"longer than {timeout} s: {' '.join(args)}\n{tail(out)}\n{tail(err)}") from None
    if check and process.returncode:
        raise Failed(f"exit {process.returncode}: {' '.join(args)}\n{tail(out)}\n{tail(err)}")
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def start(args, **options):
    """Starts a process that is killed, if it still runs, when the proof ends."""
    process = subprocess.Popen([str(a) for a in args], **options)
    cleanup.callback(end, process, signal.SIGKILL)
    return process


def end(process, how=signal.SIGTERM, timeout=20):
    """Signals a process and reaps it; SIGKILL when it does not obey in time."""
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
            return False
    return True


def tail(data, size=1500):
    return data[-size:].decode(errors="replace").strip()
