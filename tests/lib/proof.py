"""The frame of a proof: one JSON line at its end, exit 0 when it holds and 1 when not.

    with Proof("spine/3", thresholds={"lost": 0}, limit_s=900) as proof:
        proof.figures["lost"] = ...
        proof.check("nothing acknowledged is lost", lost == 0, detail)

SHOW_QUICK=1 or --quick makes the size that CI runs: the same thresholds, fewer rounds.
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback

import proc


# What a proof that fails asks for more reasons: each gives a text, or nothing.
fates = []


class Proof:
    def __init__(self, item, thresholds, limit_s, against=("tailrace",), options=None):
        parser = argparse.ArgumentParser(prog=item)
        parser.add_argument("--quick", action="store_true", default=os.environ.get("SHOW_QUICK") == "1",
                            help="the size that CI runs: same thresholds, fewer rounds")
        parser.add_argument("--against", choices=against, default="tailrace",
                            help="the broker under test")
        if options:
            options(parser)
        self.args = parser.parse_args()
        self.quick = self.args.quick
        self.against = self.args.against
        self.item = item
        self.thresholds = thresholds
        self.figures = {"size": "quick" if self.quick else "full", "against": self.against}
        self.failures = []
        self.limit_s = limit_s

    def check(self, what, holds, detail=""):
        """Notes what does not hold; the proof goes on, and fails at its end."""
        if not holds:
            self.failures.append(f"{what}: {detail}" if detail != "" else what)
            print(f"FAILED {self.item}: {self.failures[-1]}", file=sys.stderr, flush=True)
        return holds

    def say(self, text):
        print(f"[{time.monotonic() - self.started:7.1f}s] {text}", file=sys.stderr, flush=True)

    def __enter__(self):
        self.started = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._interrupted)
        signal.signal(signal.SIGALRM, self._too_long)
        signal.alarm(int(self.limit_s))
        return self

    def __exit__(self, kind, error, trace):
        signal.alarm(0)
        if error is not None:
            if not isinstance(error, proc.Failed):
                traceback.print_exception(kind, error, trace)
            self.failures.append(f"{kind.__name__}: {error}")
            print(f"FAILED {self.item}: {self.failures[-1]}", file=sys.stderr, flush=True)
        if self.failures:
            # A connection that broke says little; that its broker is gone says why.
            for fate in filter(None, (ask() for ask in fates)):
                self.failures.insert(0, fate)
                print(f"FAILED {self.item}: {fate}", file=sys.stderr, flush=True)
        # A second signal must not cut the cleaning short.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        proc.cleanup.close()
        self.figures["seconds"] = round(time.monotonic() - self.started, 1)
        line = {
            "item": self.item,
            "pass": not self.failures,
            "commit": commit(),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": " ".join([program(), *sys.argv[1:]]),
            "figures": self.figures,
            "thresholds": self.thresholds,
        }
        if self.failures:
            line["failures"] = [text[:600] for text in self.failures[:20]]
        print(json.dumps(line), flush=True)
        os._exit(0 if not self.failures else 1)

    def _interrupted(self, number, _frame):
        raise proc.Failed(f"ended by signal {number}")

    def _too_long(self, _number, _frame):
        raise proc.Failed(f"longer than its limit of {self.limit_s} s")


def program():
    """The path of the running proof, from the root of the project."""
    return os.path.relpath(os.path.realpath(sys.argv[0]), proc.ROOT)


def commit():
    """The commit under test, with a + when files differ from it, but for those that the proofs write."""
    git = ["git", "-C", str(proc.ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    dirty = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no", "--",
                            ":/", ":!/docs/shown.json", ":!/docs/performance.md", ":!/docs/clients.md",
                            ":!/docs/first-group.md", ":!/docs/bench", ":!/docs/measured.md"],
                           capture_output=True, text=True)
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def binary():
    """The tailrace under test: TAILRACE_BIN, or what `cargo build --profile ci` makes."""
    given = os.environ.get("TAILRACE_BIN")
    if given:
        return pathlib.Path(given).resolve()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or proc.ROOT / "target")
    proc.run(["cargo", "build", "--quiet", "--locked", "--profile", "ci", "--bin", "tailrace",
              "--manifest-path", proc.ROOT / "Cargo.toml"], timeout=2400)
    return target / "ci" / "tailrace"
