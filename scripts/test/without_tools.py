#!/usr/bin/env python3
"""Runs the end-to-end tests on machines that lack tools: a missing tool may skip a test, by name, and never fails it.

First with a PATH that holds only what a fresh Debian machine with Rust and Python 3 has. Then the tests that were skipped
there, with all tools, each in a process of its own, to see which of scripts/test/tools.txt it starts; and last, for each
tool, the tests that start it, without this tool alone. Needs Debian, root, and those tools. With --fresh it stops after the
first step.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[2]
# A fresh machine has these beside Debian's required packages; Rust needs a linker.
PACKAGES = """
    gcc gcc-12 cpp cpp-12 binutils binutils-x86-64-linux-gnu make git python3 python3-minimal python3.11-minimal
""".split()
COMMANDS = "sh awk cc cargo rustc rustup git make".split()
SKIP_STARTS = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. SKIPPED ", re.MULTILINE)


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def link(folder, name, target):
    path = folder / name
    if target and not path.exists():
        path.symlink_to(os.path.realpath(target))


def fresh_path(folder):
    """A folder of links to what a fresh machine has."""
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
    return folder


def rest_path(folder, optional):
    """A folder of links to all commands of this machine but these."""
    for path in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for name in sorted(os.listdir(path)):
            if name not in optional:
                link(folder, name, os.path.join(path, name))
    return folder


def tools(fresh):
    """Commands of the list that a fresh machine lacks, with their paths."""
    lines = (ROOT / "scripts/test/tools.txt").read_text().splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith(("#", "/"))]
    found = {name: which(name) for name in names if not (fresh / name).exists()}
    for name, path in found.items():
        if path is None:
            sys.exit(f"test-without-tools: {name} is missing; scripts/test/tools installs it")
    return found


def test_groups():
    """(name, program, folder to start it in, names of tests) of each subject of the end-to-end tests."""
    build = ["cargo", "test", "--locked", "--workspace", "--no-run", "--message-format=json"]
    for line in output(*build).splitlines():
        message = json.loads(line)
        target = message.get("target", {})
        if message.get("executable") and target["kind"] == ["test"] and Path(target["src_path"]).resolve().is_relative_to(ROOT / "tests"):
            program, folder = message["executable"], os.path.dirname(message["manifest_path"])
            subjects = {}
            for test in re.findall(r"^(\S+): test$", output(program, "--list"), re.MULTILINE):
                subjects.setdefault(test.split("::")[0], []).append(test)
            for subject, tests in subjects.items():
                yield f"{target['name']} {subject}", program, folder, tests


def run(program, folder, path, *arguments, log=""):
    """Exit code and all that a test program printed, with this PATH."""
    environment = {name: value for name, value in os.environ.items() if name != "FENXI_REQUIRE_ALL"}
    environment.update(PATH=str(path), STARTED_TOOLS=str(log))
    command = [program, "--test-threads=1", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    return done.returncode, done.stdout


def report(what, results):
    """Prints what failed; whether anything did."""
    failed = [(name, text) for name, code, text in results if code]
    for name, text in failed:
        print(f"--- {name}, {what}\n{text}")
    print(f"{what}: {len(results)} runs, {len(failed)} failed", flush=True)
    return bool(failed) or not results


def main():
    if os.geteuid() != 0:
        sys.exit("test-without-tools: run as root: without it, live tests are skipped for that reason")
    groups = list(test_groups())
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        scratch = Path(scratch)
        fresh, rest, shims, logs = (scratch / name for name in ("fresh", "rest", "shims", "logs"))
        for folder in (fresh, rest, shims, logs):
            folder.mkdir()
        fresh_path(fresh)
        optional = tools(fresh)
        rest_path(rest, optional)

        done = pool.map(lambda it: run(it[1], it[2], fresh, "--exact", *it[3]), groups)
        results = [(name, program, folder, *result) for (name, program, folder, _), result in zip(groups, done)]
        is_bad = report("on a fresh machine", [(name, code, text) for name, _, _, code, text in results])
        if sys.argv[1:] == ["--fresh"]:
            return is_bad
        skipped = [(program, folder, test) for _, program, folder, _, text in results for test in SKIP_STARTS.findall(text)]

        # Each tool is a script that notes its start and becomes the tool.
        for name, path in optional.items():
            shim = shims / name
            shim.write_text(f'#!/bin/sh\necho {name} >>"$STARTED_TOOLS"\nexec {path} "$@"\n')
            shim.chmod(0o755)

        def with_all(number):
            program, folder, test = skipped[number]
            code, text = run(program, folder, f"{shims}:{fresh}:{rest}", "--exact", test, log=logs / str(number))
            return test, code, text

        is_bad |= report("with all tools, one by one", list(pool.map(with_all, range(len(skipped)))))

        started = {}
        for number in range(len(skipped)):
            log = logs / str(number)
            for tool in set(log.read_text().split()) if log.exists() else ():
                started.setdefault(tool, []).append(number)

        def without(tool):
            folder = scratch / f"without-{tool}"
            folder.mkdir()
            for name, path in optional.items():
                if name != tool:
                    link(folder, name, path)
            by_program = {}
            for number in started[tool]:
                program, start_in, test = skipped[number]
                by_program.setdefault((program, start_in), []).append(test)
            return [
                (f"{Path(program).name} without {tool}", *run(program, start_in, f"{folder}:{fresh}:{rest}", "--exact", *tests))
                for (program, start_in), tests in by_program.items()
            ]

        results = [result for of_tool in pool.map(without, sorted(started)) for result in of_tool]
        is_bad |= report(f"without one tool ({' '.join(sorted(started))})", results)
    return is_bad


if __name__ == "__main__":
    sys.exit(main())
