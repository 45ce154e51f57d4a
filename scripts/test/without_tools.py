"""End-to-end tests on machines that lack tools: a missing tool may skip a test, by name, and never
fails it.

The ordinary run records which commands each test starts that a fresh Debian machine with Rust and
Python 3 lacks. A test that starts none passes there, too. The others run again: with none of these
commands, and without each tool of tools.txt that they start, alone. Needs Debian, root, and the
tools.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import which

# A fresh machine has these beside Debian's required packages; Rust needs a linker.
PACKAGES = """
    gcc gcc-12 cpp cpp-12 binutils binutils-x86-64-linux-gnu make git
    python3 python3-minimal python3.11-minimal
""".split()
COMMANDS = "sh awk cc cargo rustc rustup git make".split()


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def link(folder, name, target):
    path = folder / name
    if target and not path.exists():
        path.symlink_to(os.path.realpath(target))


def fill_fresh(folder):
    """Links to what a fresh machine has."""
    status = output("dpkg-query", "-W", "-f", "${Priority} ${Package}\n").splitlines()
    required = [line.split()[1] for line in status if line.startswith("required ")]
    installed = {line.split()[1] for line in status}
    for package in required + [package for package in PACKAGES if package in installed]:
        for line in output("dpkg", "-L", package).splitlines():
            if re.fullmatch(r"(/usr)?/s?bin/[^/]+", line) and os.access(line, os.X_OK):
                link(folder, os.path.basename(line), line)
    for name in COMMANDS:
        # rustup's commands look at the name that they were called by.
        if (target := which(name)) and not (folder / name).exists():
            (folder / name).symlink_to(target)
    link(folder, "python3", sys.executable)


class WithoutTools:
    def __init__(self, scratch):
        if os.geteuid() != 0:
            sys.exit("without_tools: run as root, without which live tests are skipped")
        self.scratch = scratch
        self.fresh, self.shims = scratch / "fresh", scratch / "shims"
        self.fresh.mkdir()
        self.shims.mkdir()
        fill_fresh(self.fresh)
        lines = Path(__file__).with_name("tools.txt").read_text().splitlines()
        listed = [line.split()[0] for line in lines if line and not line.startswith(("#", "/"))]
        self.tools = {name for name in listed if not (self.fresh / name).exists()}
        folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        names = self.tools.union(*map(os.listdir, folders))
        found = {name: which(name) for name in names if not (self.fresh / name).exists()}
        if missing := sorted(name for name in self.tools if not found[name]):
            missing = " ".join(missing)
            sys.exit(f"without_tools: {missing}: missing; scripts/test/tools installs them")
        # Each command is a script that notes its start and becomes the command. In a sandbox that
        # opens no file, as man's, it notes nothing; a command outside has noted its own start.
        for name, path in found.items():
            if path:
                shim = self.shims / name
                note = f'{{ echo "{name}" >>"$STARTED_TOOLS"; }} 2>&-'
                shim.write_text(f'#!/bin/sh\n{note}\nexec "{path}" "$@"\n')
                shim.chmod(0o755)
        self.found = found
        self.logs = {}  # of each test, which the shims write

    def recording(self, test):
        """The environment in which a test's commands are recorded."""
        log = self.logs[test] = self.scratch / f"started-{len(self.logs)}"
        return {"PATH": f"{self.shims}:{self.fresh}", "STARTED_TOOLS": str(log)}

    def path_without(self, tool):
        """All commands of the machine but this."""
        folder = self.scratch / f"without-{tool}"
        folder.mkdir()
        for name, path in self.found.items():
            if name != tool:
                link(folder, name, path)
        return f"{folder}:{self.fresh}"

    def run_again(self, pool, run_test):
        """Runs what started a command on machines without it; whether anything failed."""
        started = {}
        for test, log in self.logs.items():
            if log.exists():
                started[test] = set(log.read_text().split())
        tools = sorted(self.tools & set().union(*started.values()))
        machines = [("any tool", self.fresh, list(started))]
        for tool in tools:
            tests = [test for test, names in started.items() if tool in names]
            machines.append((tool, self.path_without(tool), tests))
        runs = []
        for what, path, tests in machines:
            environment = {"PATH": str(path), "FENXI_REQUIRE_ALL": "0"}
            for test in tests:
                runs.append((test[-1], what, pool.submit(run_test, *test, environment)))
        failed = 0
        for name, what, run in runs:
            code, text = run.result()
            if code:
                failed += 1
                print(f"--- {name} without {what}\n{text}")
        print(f"without tools ({' '.join(tools)}): {len(runs)} runs, {failed} failed")
        return bool(failed) or not started
