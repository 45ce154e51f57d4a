"""Training contacts nobody and writes only what it is told to; ONNX Runtime has a telemetry client, which must be off."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import FAST

# `openat(AT_FDCWD, "PATH", O_RDWR|O_CREAT...`, `mkdir("PATH", 0700)` and the like.
WRITES = re.compile(r'\b(?:open\w*\([^"]*"([^"]+)", [A-Z_|]*O_(?:WRONLY|RDWR|CREAT)|(?:mkdir|creat|rename)\w*\([^"]*"([^"]+)")')
CONTACTS = re.compile(r"sa_family=AF_INET|sun_path=")


@pytest.mark.skipif(not shutil.which("strace"), reason="needs the program strace")
def test_fit_contacts_nobody_and_writes_only_its_bundle(table, tmp_path):
    trace, home = tmp_path / "trace", tmp_path / "home"
    for folder in (home, tmp_path / "cache", tmp_path / "tmp"):
        folder.mkdir()
    # Not the variables of a CI, where the client is off.
    environment = {
        "PATH": os.environ["PATH"], "HOME": home, "XDG_CACHE_HOME": tmp_path / "cache", "TMPDIR": tmp_path / "tmp",
        "PYTHONPATH": os.pathsep.join(sys.path), "ORT_DISABLE_TELEMETRY": "0",
    }
    strace = ["strace", "-f", "-q", "--seccomp-bpf", "-e", "trace=%file,%network", "-o", trace]
    fit = [sys.executable, "-B", "-m", "fenxi_train", "fit", table, "--out", tmp_path / "b", "--k", "3", *FAST]
    done = subprocess.run([*strace, *fit], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b/model.onnx").exists()
    lines = trace.read_text().splitlines()
    written = {path for line in lines for found in WRITES.finditer(line) for path in found.groups() if path}
    assert written and {path for path in written if not path.startswith((str(tmp_path), "/dev/"))} == set()
    assert [line for line in lines if CONTACTS.search(line)] == []
    assert list(home.iterdir()) + list((tmp_path / "cache").iterdir()) == []
