"""kafka-python's integration tests, from its source distribution (source.txt), with what requirements.txt pins."""

import os
import shutil
import sys
import xml.etree.ElementTree

import proc
import suites
from suites import BUILD_LIMIT_S, Result, Round, Suite


class KafkaPython(Suite):
    """Its tests take the broker for number 0."""

    name, version = "kafka-python", "3.0.12"
    rounds = (Round(flags=("--node-id", "0"), sets={
        "node.id": "0", "super.users": "User:ANONYMOUS", "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}),)

    @property
    def source(self):
        return self.target / f"kafka_python-{self.version}"

    def environment(self):
        return {"PYTHONPATH": str(self.target / "packages"), "PYTHONDONTWRITEBYTECODE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def make(self):
        pip = [sys.executable, "-m", "pip"]
        proc.run([*pip, "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--root-user-action=ignore",
                  "--target", self.target / "packages", "-r", self.folder / "requirements.txt"], timeout=BUILD_LIMIT_S)
        # The metadata that pip asks a source distribution for are made by the setuptools just installed.
        proc.run([*pip, "download", "--quiet", "--no-deps", "--no-build-isolation", "--require-hashes", "--no-binary", ":all:",
                  "--dest", self.target, "-r", self.folder / "source.txt"], timeout=BUILD_LIMIT_S, env={**os.environ, **self.environment()})
        proc.run(["tar", "-xzf", f"{self.source}.tar.gz", "-C", self.target, "--no-same-owner"])
        shutil.copy(self.folder / "service.py", self.source / "test" / "service.py")
        # Else Python's own package of this name is found first.
        (self.source / "test" / "__init__.py").touch()

    def run(self, broker, left_out, environment, log):
        report = log.with_suffix(".xml")
        report.unlink(missing_ok=True)
        out = [w for test in left_out for w in ("--deselect", path(test))]
        # KAFKA_ROOT must be there, and nothing in it is used. A test that hangs fails, and the others go on.
        output, code = suites.play(
            [sys.executable, "-m", "pytest", "test/integration", "-p", "no:cacheprovider", "-v", "--tb=short", f"--junitxml={report}",
             "--timeout=60", "--timeout-method=signal", *out], log, self.limit_s, self.source,
            {**self.environment(), "KAFKA_URI": f"kafka://{broker.bootstrap}", "KAFKA_VERSION": "4.3.0", "KAFKA_ROOT": str(self.target)})
        if not report.exists():
            raise proc.Failed(f"{self.name}: exit {code}, and no report: {output[-900:]}")
        return dict(result(case) for case in xml.etree.ElementTree.parse(report).iter("testcase"))


def result(case):
    group = case.get("classname").removeprefix("test.integration.")
    outcome, said = "passed", []
    for kind in case:
        if kind.tag in ("failure", "error", "skipped"):
            outcome = "skipped" if kind.tag == "skipped" else "failed"
            said = [kind.get("message") or "", *(line for line in (kind.text or "").splitlines() if line.startswith("E "))]
    return f"{group}:{case.get('name')}", Result(outcome, suites.said(dict.fromkeys(said)))


def path(test):
    """How pytest names it."""
    module, _, rest = test.partition(":")
    module, _, group = module.partition(".")
    return "::".join(filter(None, (f"test/integration/{module}.py", group, rest)))
