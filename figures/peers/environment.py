"""Python environments of peers, as benches/peers/NAME.txt pins them."""

import re
import shutil
import sys

from ..report import ROOT, TARGET, Failure, Skip, output_of, say

PEERS = ROOT / "benches" / "peers"


def environment(name, package):
    """The Python of the environment, made if need be, and the package's version."""
    pinned, venv = PEERS / f"{name}.txt", TARGET / f"peers-venv-{name}"
    stamp = venv / pinned.name
    if not stamp.exists() or stamp.read_text() != pinned.read_text():
        say(f"installing {package}")
        try:
            output_of(sys.executable, "-m", "venv", "--clear", venv)
            output_of(
                venv / "bin" / "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "-r",
                pinned,
            )
        except Failure as failure:
            raise Skip(failure) from None
        shutil.copy(pinned, stamp)
    version = re.search(rf"^{package}==(\S+)", pinned.read_text(), re.MULTILINE).group(1)
    return venv / "bin" / "python", version
