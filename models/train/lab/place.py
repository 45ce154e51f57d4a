"""Where a server listens and what both ends need: folders, keys, certificates, files of three sizes."""

import csv
import dataclasses
import io
import os
import pathlib
import random
import shutil
import subprocess

ROOT = pathlib.Path("/tmp/fenxi-lab")
HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parent.parent.parent / "target"
PYTHON, UNPACKED = TARGET / "lab-venv/bin/python", TARGET / "lab-root"
USER, PASSWORD = "fenxi-lab", "lab password 17"
NAME = "lab.example"
FILES = {1: "small.txt", 2: "medium.html", 3: "large.bin"}
SIZES = {1: 300, 2: 9_000, 3: 300_000}


@dataclasses.dataclass
class Site:
    """A server's place, and the size of the exchange that is to come."""

    host: str
    guest: str
    port: int
    folder: pathlib.Path
    size: int = 1
    listen: int = 0  # the port that the program itself uses

    def __post_init__(self):
        self.listen = self.listen or self.port

    @property
    def file(self):
        return FILES[self.size]

    @property
    def bytes(self):
        return SIZES[self.size]

    @property
    def path(self):
        return WWW / self.file

    def write(self, name, text):
        """A configuration file in the server's folder."""
        path = self.folder / name
        path.write_text(text)
        return path


WWW, KEYS, HOME = ROOT / "www", ROOT / "keys", ROOT / "home"


def environment(folder):
    return {**os.environ, "HOME": str(folder), "KRB5_CONFIG": str(folder / "krb5.conf"), "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder}/ccache", "LDAPTLS_REQCERT": "never", "PYTHONDONTWRITEBYTECODE": "1"}


def new_folder(*names):
    folder = ROOT / "-".join(map(str, names))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chmod(folder, 0o755)
    return folder


def prepare(host):
    """Files, keys and certificates, made once."""
    for folder in (WWW, KEYS, HOME / ".ssh"):
        folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    for size, name in FILES.items():
        (WWW / name).write_bytes(bytes(rng.choices(range(32, 127), k=SIZES[size])))
    run = lambda *argv: subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if subprocess.run(["id", USER], capture_output=True).returncode:
        run("useradd", "--system", "--home-dir", HOME, "--shell", "/bin/sh", USER)
        subprocess.run(["chpasswd"], input=f"{USER}:{PASSWORD}", text=True, check=True)
    if not (KEYS / "leaf.pem").exists():
        certificates(run, host)
        for kind in ("rsa", "ed25519"):
            run("ssh-keygen", "-q", "-N", "", "-t", kind, "-m", "PEM", "-f", KEYS / f"host_{kind}")
        run("ssh-keygen", "-q", "-N", "", "-t", "rsa", "-m", "PEM", "-f", KEYS / "user")
        run("dropbearkey", "-t", "rsa", "-f", KEYS / "dropbear")
        run("dropbearconvert", "openssh", "dropbear", KEYS / "user", KEYS / "user.dropbear")
    shutil.copy(KEYS / "user.pub", HOME / ".ssh/authorized_keys")
    run("chown", "-R", USER, HOME)
    run("chmod", "700", HOME / ".ssh")


def certificates(run, host):
    """A certificate of two levels, so that its chain has the size of real ones."""
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/O=Laboratory/CN=Lab Root", "-keyout", KEYS / "ca.key",
        "-out", KEYS / "ca.pem")
    run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/O=Laboratory/CN={NAME}", "-keyout", KEYS / "leaf.key", "-out", KEYS / "leaf.csr")
    names = KEYS / "names"
    names.write_text(f"subjectAltName=DNS:{NAME},DNS:www.{NAME},IP:{host}\n")
    run("openssl", "x509", "-req", "-in", KEYS / "leaf.csr", "-CA", KEYS / "ca.pem", "-CAkey", KEYS / "ca.key", "-CAcreateserial", "-days", "3650",
        "-extfile", names, "-out", KEYS / "leaf.pem")
    (KEYS / "chain.pem").write_text((KEYS / "leaf.pem").read_text() + (KEYS / "ca.pem").read_text())
    (KEYS / "both.pem").write_text((KEYS / "leaf.key").read_text() + (KEYS / "chain.pem").read_text())


def signal_session(session, wanted):
    """Sends a signal to all processes of a session, those in process groups of their own too."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == session:
                    os.kill(int(entry.name), wanted)
            except (OSError, IndexError):
                continue


def csv_bytes(rows, columns):
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
