"""The two Unix sockets of fenxi that a tuner uses: one gives samples, the other takes offers.

A frame of the learn socket is its length, 32 bits little endian, and that many bytes of JSON.
fenxi sends one at least every second, also without samples.
"""

import json
import re
import socket
import struct
import sys
import time

VERSION = 1
FRAME_MAX = 1 << 20
REPLY_MAX = 1 << 20
SILENT_S = 15  # without a frame: fenxi hangs
WAIT_S = 1, 30  # before another try to connect: at first, at most
REPLY_S = 150  # an offer is answered once it is judged; `fenxi ctl` waits as long
IN_USE = re.compile(r'^fenxi_model_info\{[^}]*sha256="([0-9a-f]{64})"', re.MULTILINE)


class Broken(Exception):
    """The peer went away, or sent something else than a frame or a reply."""


class Unanswered(Broken):
    """A request was sent and not answered, so nobody knows what became of it."""


def frames(path, say, sleep=time.sleep):
    """The frames of a learn socket, without end; connects again whenever the connection is lost."""
    wait = WAIT_S[0]
    while True:
        try:
            with connected(path, SILENT_S) as stream:
                for frame in frames_of(stream):
                    say("learn", f"{path}: connected")
                    wait = WAIT_S[0]
                    yield frame
        except (OSError, Broken) as error:
            say("learn", f"{path}: {reason(error)}; tries again")
        sleep(wait)
        wait = min(2 * wait, WAIT_S[1])


def connected(path, timeout_s):
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(timeout_s)
    try:
        stream.connect(str(path))
    except OSError:
        stream.close()
        raise
    return stream


def frames_of(stream):
    """The frames of one connection; ends with Broken."""
    while True:
        (length,) = struct.unpack("<I", exactly(stream, 4))
        if length > FRAME_MAX:
            raise Broken(f"a frame of {length:,} bytes; {FRAME_MAX:,} is the most")
        yield frame_of(exactly(stream, length))


def frame_of(text):
    """The frame that this text is."""
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        raise Broken("a frame that is not JSON") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("samples"), list):
        raise Broken("a frame without samples")
    if frame.get("version") != VERSION:
        raise Broken(f"frames of version {frame.get('version')}; this fenxi-tune reads {VERSION}")
    return frame


def exactly(stream, count):
    """That many bytes."""
    parts = []
    while count:
        part = stream.recv(min(count, 1 << 16))
        if not part:
            raise Broken("connection closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def asked(path, request):
    """(code, text) of the reply to a request on the control socket."""
    reply = reply_to(path, request)
    return reply["code"], reply.get("error") or reply.get("done") or ""


def models_in_use(path):
    """SHA-256 of the models that fenxi uses."""
    metrics = reply_to(path, {"command": "metrics"}).get("metrics", "")
    return set(IN_USE.findall(metrics))


def reply_to(path, request):
    try:
        stream = connected(path, REPLY_S)
    except OSError as error:
        raise Broken(f"{path}: {reason(error)}") from None
    try:
        with stream:
            # fenxi knows a long request by its beginning, without spaces.
            stream.sendall(json.dumps(request, separators=(",", ":")).encode() + b"\n")
            reply = bytearray()
            while not reply.endswith(b"\n") and len(reply) < REPLY_MAX:
                part = stream.recv(1 << 16)
                if not part:
                    break
                reply += part
        reply = json.loads(reply)
        reply["code"], reply.get("error")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unanswered(f"{path}: no reply") from None
    except OSError as error:
        raise Unanswered(f"{path}: {reason(error)}") from None
    return reply


def reason(error):
    """In one line."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def replace(path, text):
    """Writes a file that others read meanwhile."""
    part = path.with_name(f".{path.name}")
    part.write_text(text)
    part.replace(path)


def speaker():
    """Prints lines; of a subject only when it has changed, so that what lasts is told once."""
    last = {}

    def say(subject, text):
        if text and (subject is None or last.get(subject) != text):
            print(f"fenxi-tune: {text}", file=sys.stderr, flush=True)
        last[subject] = text

    return say
