"""Bundles for many routers: a tuner publishes them in a folder, which any web server serves, and
each router pulls the newest one and offers it to its fenxi.

`latest.json` names the newest: {"name": "model-00000012", "generation": 12, "files": {"model.toml":
SHA-256, ...}}; its files are in the folder of that name.  Hashes show here that a bundle came
whole.  Who made it, fenxi asks of the signature (learn.key).
"""

import argparse
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.parse
import urllib.request

from . import wire
from .errors import CANNOT_CREATE, Parser, Refusal, positive

LATEST = "latest.json"
SIGNATURE = "model.toml.minisig"
SIGN_S = 60
PART = ".pull-"
PULLED = "pulled"  # the newest bundle that fenxi has answered
KEPT = 5  # bundles
# What is taken from a server.
LATEST_MAX = 1 << 16
BUNDLE_MAX = 256 << 20
FILES_MAX = 16
FILE_S = 300
SILENT_S = 30
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FILE = re.compile(rf"{NAME.pattern}(/{NAME.pattern})?")
DIGEST = re.compile(r"[0-9a-f]{64}")
LATER = 403, 408, 409, 501, 503  # replies of fenxi that say nothing of the bundle


def sign(command, folder):
    """Has `command`, a list of words, sign model.toml."""
    try:
        done = subprocess.run([*command, folder / "model.toml"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=SIGN_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise wire.Broken(f"--sign: {wire.reason(error)}") from None
    if done.returncode != 0 or not (folder / SIGNATURE).is_file():
        last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [f"no {SIGNATURE}"]
        raise wire.Broken(f"--sign: {last[0]}")


def publish(folder, generation):
    """Makes the bundle in this folder the newest one beside it."""
    files = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
             for path in sorted(folder.rglob("*")) if path.is_file()}
    latest = {"name": folder.name, "generation": generation, "files": files}
    wire.replace(folder.parent / LATEST, json.dumps(latest) + "\n")


def source(place):
    """A function that reads a file of this folder or web server, up to a number of bytes."""
    if "://" in place:
        kinds = urllib.request
        opener = kinds.OpenerDirector()
        for kind in (kinds.ProxyHandler, kinds.UnknownHandler, kinds.HTTPHandler,
                     kinds.HTTPSHandler, kinds.HTTPDefaultErrorHandler,
                     kinds.HTTPRedirectHandler, kinds.HTTPErrorProcessor):
            opener.add_handler(kind())
        base = place.rstrip("/") + "/"
        return lambda file, most: read_url(opener, base + urllib.parse.quote(file), most)
    return lambda file, most: read_file(pathlib.Path(place) / file, most)


def read_url(opener, url, most):
    data, until = bytearray(), time.monotonic() + FILE_S
    try:
        with opener.open(url, timeout=SILENT_S) as answer:
            while part := answer.read1(1 << 16):
                data += part
                if len(data) > most:
                    raise wire.Broken(f"{url}: more than {most:,} bytes")
                if time.monotonic() > until:
                    raise wire.Broken(f"{url}: not there after {FILE_S} s")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise wire.Broken(f"{url}: {wire.reason(error)}") from None
    return bytes(data)


def read_file(path, most):
    try:
        # Neither a link nor a pipe, which might never end.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise wire.Broken(f"{path}: no file")
            data = file.read(most + 1)
    except OSError as error:
        raise wire.Broken(f"{path}: {wire.reason(error)}") from None
    if len(data) > most:
        raise wire.Broken(f"{path}: more than {most:,} bytes")
    return data


def latest_of(read):
    """(name, files) of the newest bundle."""
    try:
        latest = json.loads(read(LATEST, LATEST_MAX))
        name, files = latest["name"], latest["files"]
        is_sound = (
            NAME.fullmatch(name) and "model.toml" in files and len(files) <= FILES_MAX
            and all(FILE.fullmatch(f) and DIGEST.fullmatch(d) for f, d in files.items())
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise wire.Broken(f"{LATEST}: not what fenxi-tune publishes")
    return name, files


def fetch(read, name, files, into):
    """Brings a bundle into the folder `into`, whole or not at all."""
    made, left = pathlib.Path(tempfile.mkdtemp(prefix=PART, dir=into.parent)), BUNDLE_MAX
    try:
        os.chmod(made, 0o755)
        for file, digest in files.items():
            data = read(f"{name}/{file}", left)
            left -= len(data)
            if hashlib.sha256(data).hexdigest() != digest:
                raise wire.Broken(f"{name}/{file}: not as {LATEST} says; tries again")
            (made / file).parent.mkdir(exist_ok=True)
            (made / file).write_bytes(data)
        shutil.rmtree(into, ignore_errors=True)  # of a service that was killed
        made.rename(into)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def tidy(folders, in_use):
    """Removes bundles, the oldest first, but the newest five and those whose SHA-256 is in use."""
    try:
        used = in_use() if len(folders) > KEPT else ()
    except wire.Broken:
        return  # until fenxi answers
    for folder in folders[:-KEPT]:
        try:
            digest = tomllib.loads((folder / "model.toml").read_text())["sha256"]
        except (OSError, ValueError, LookupError):
            digest = None
        if digest not in used:
            shutil.rmtree(folder, ignore_errors=True)


def pull(read, into, offer, say, in_use=frozenset):
    """Brings the newest bundle to fenxi, unless it has had it."""
    name, files = latest_of(read)
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    pulled = into / PULLED
    if pulled.exists() and pulled.read_text() == digest:
        return
    folder = into / f"{name}-{digest[:8]}"
    fetch(read, name, files, folder)
    code = None
    try:
        code, answer = offer(folder.resolve())
        if code in LATER:
            why = "another candidate is under way" if code == 409 else answer
            say("offer", f"{folder}: offered again later: {why}")
        else:
            say(None, f"{folder}: {'offered' if code == 200 else 'refused'}: {answer}")
    except wire.Unanswered:
        code = 200  # fenxi may be at it, so the folder stays
        raise
    finally:
        if code != 200:
            shutil.rmtree(folder, ignore_errors=True)
    if code not in LATER:
        wire.replace(pulled, digest)
    ours = (path for path in into.iterdir() if path.is_dir() and path.name[0] != ".")
    tidy(sorted(ours, key=lambda path: path.stat().st_mtime), in_use)


def parser():
    made = Parser(
        prog="fenxi-tune pull", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Pull the newest bundle that a fenxi-tune elsewhere publishes; offer it to\n"
        "the fenxi here, which checks its signature if it has a key (learn.key).")
    add = made.add_argument
    add("--from", required=True, dest="place", metavar="URL|DIR",
        help="what a web server makes of the folder --into of the other fenxi-tune, or a copy")
    add("--control", required=True, metavar="SOCKET", help="control socket of fenxi")
    add("--task", required=True, help="task whose model it is")
    add("--into", required=True, metavar="DIR", help="folder for bundles; made if missing")
    add("--every", type=positive, default=60, metavar="SECONDS",
        help="time between two looks (60)")
    add("--once", action="store_true", help="look once, then end")
    return made


def run(args):
    into = pathlib.Path(args.into)
    try:
        into.mkdir(exist_ok=True)
    except OSError as error:
        raise Refusal(f"{into}: {wire.reason(error)}", CANNOT_CREATE) from None
    for left in into.glob(f"{PART}*"):  # by a service that was killed
        shutil.rmtree(left, ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    read, say = source(args.place), wire.speaker()

    def offer(folder):
        request = {"command": "model_offer", "dir": str(folder), "task": args.task}
        return wire.asked(args.control, request)

    def in_use():
        return wire.models_in_use(args.control)

    while True:
        try:
            pull(read, into, offer, say, in_use)
            say("pull", None)
        except (wire.Broken, OSError) as error:
            say("pull", f"nothing pulled: {error}")
        if args.once:
            return
        time.sleep(args.every)


def main(arguments):
    return carry_out(run, parser().parse_args(arguments))


def carry_out(work, args):
    """Does the work of a program; its exit code."""
    try:
        work(args)
    except Refusal as refusal:
        print(f"fenxi-tune: {refusal}", file=sys.stderr)
        return refusal.code
    except KeyboardInterrupt:
        return 0
