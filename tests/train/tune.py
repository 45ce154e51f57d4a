"""Static model, drift, offers, promotion, and the way back, against a running fenxi.

usage: tune.py FENXI FOLDER     in a network namespace with the interfaces a and b, which are wired

Half of the servers are heavy: what they send weighs much after a long request.  With the drift come
other servers, and heavy ones send much after a short request.  Where minisign is installed, fenxi
asks for signatures.
"""

import heapq
import itertools
import json
import multiprocessing
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import numpy as np

from fenxi_train import bundle, fleet, servers, volume

FLOWS_PER_S = 250
EARLY_FLOWS = 2_000
SERVERS = 16  # heavy ones, and as many light ones
LONG = 600  # bytes of a request
STRAY = 0.1  # share of the flows that are large or small against the rule
STEP_S = 0.004  # between two packets of a flow
IDLE_S = 1
DEPTHS = (1, 3)
HEADERS = 28  # bytes of IPv4 and UDP
PATIENCE_S = 60
ETHERNET = bytes(range(2, 14)) + b"\x08\x00"


class Traffic:
    """Flows: the server's address, and the payloads of the packets, below 0 from the server."""

    def __init__(self, seed):
        self.random, self.is_late = random.Random(seed), False

    def flow(self):
        draw = self.random
        is_heavy, request = draw.random() < 0.5, draw.randrange(80, 1200)
        number = draw.randrange(SERVERS)
        is_large = is_heavy and (request >= LONG) != self.is_late
        if draw.random() < STRAY:
            is_large = not is_large
        body = [-1200] * (20 + 3 * number) if is_large else [-300] * (1 + request // 200)
        server = f"10.{1 + is_heavy + 2 * self.is_late}.{number}.1"
        return server, [request, -draw.randrange(100, 200), 60, *body]


def write_early(path):
    """Samples of early traffic, as fenxi would have sent them."""
    memory, ends, traffic = servers.Memory(), [], Traffic(1)
    with open(path, "w") as file:
        for number in range(EARLY_FLOWS):
            began_us = 1_790_000_000_000_000 + number * 1_000_000 // FLOWS_PER_S
            while ends and ends[0][0] <= began_us:
                memory.end(17, *heapq.heappop(ends)[1:])
            server, packets = traffic.flow()
            lengths = [p + HEADERS if p > 0 else p - HEADERS for p in packets]
            known = memory.begin(17, server, 443, began_us)
            step_us = int(STEP_S * 1e6)
            duration_us, all_bytes = step_us * (len(packets) - 1), sum(map(abs, lengths))
            over_us = began_us + duration_us + IDLE_S * 1_000_000
            heapq.heappush(ends, (over_us, server, 443, all_bytes, duration_us))
            for depth in DEPTHS:
                sample = {
                    "proto": 17, "server_port": 443, "began_us": began_us,
                    "elements": [[n, at * step_us] for at, n in enumerate(lengths[:depth])],
                    "context": dict(zip(servers.FEATURES, known)),
                    "truth": {"bytes_to_come": sum(map(abs, lengths[depth:]))},
                }
                file.write(json.dumps(sample) + "\n")


def frame(client, server, payload):
    """A packet of UDP; payloads below 0 come from the server."""
    ends = [(socket.inet_aton(client[0]), client[1]), (socket.inet_aton(server), 443)]
    (source, source_port), (target, target_port) = ends if payload > 0 else reversed(ends)
    size = abs(payload)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, size + HEADERS, 0, 0x4000, 64, 17, 0, source, target)
    check = sum(struct.unpack("!10H", ip))
    check = 0xFFFF - (check % 0xFFFF)
    ip = ip[:10] + struct.pack("!H", check) + ip[12:]
    return ETHERNET + ip + struct.pack("!HHHH", source_port, target_port, size + 8, 0) + bytes(size)


def send(is_late, is_over):
    """Sends flows until it is over."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind(("a", 0))
    traffic, due, numbers = Traffic(2), [], itertools.count()
    next_s = time.monotonic()
    while not is_over.is_set():
        now = time.monotonic()
        traffic.is_late = is_late.is_set()
        while next_s <= now:
            number = next(numbers)
            client = f"192.168.{number // 200 % 200}.{number % 200 + 1}", 1024 + number % 60_000
            server, packets = traffic.flow()
            frames = iter([frame(client, server, payload) for payload in packets])
            heapq.heappush(due, (next_s, number, frames))
            next_s += 1 / FLOWS_PER_S
        while due and due[0][0] <= now:
            at, number, frames = due[0]
            if found := next(frames, None):
                wire.send(found)
                heapq.heapreplace(due, (at + STEP_S, number, frames))
            else:
                heapq.heappop(due)
        time.sleep(0.002)


class Fenxi:
    """A running fenxi."""

    def __init__(self, program, work, model, key):
        self.program, self.socket = program, work / "ctl.sock"
        self.records, self.log = work / "flows.jsonl", open(work / "fenxi.log", "w")
        keys = [
            'io.interfaces=["b"]', "flow.max_flows=16384", f"flow.idle_timeout_s={IDLE_S}",
            "pipeline.layout=1:1:1", f"control.socket={self.socket}", "control.http=",
            f"learn.socket={work}/learn.sock", "learn.share=1", "learn.every_ms=200",
            f"learn.key={key}",
        ]
        sets = [part for key in keys for part in ("--set", key)]
        run = [program, "run", "--model", model, "--flows", self.records, *sets]
        self.process = subprocess.Popen(run, stdout=self.log, stderr=self.log)
        wait_for("fenxi is ready", lambda: self.socket.exists() and self.ctl("status")[0] == 0)

    def ctl(self, *args):
        found = subprocess.run([self.program, "ctl", "--socket", self.socket, *args],
                               capture_output=True, text=True)
        return found.returncode, found.stdout + found.stderr

    def offers(self, outcome):
        """How many offers came to this."""
        sample = rf'^fenxi_model_offers\w*{{[^}}]*outcome="{outcome}"[^}}]*}} (\d+)$'
        return sum(map(int, re.findall(sample, self.ctl("metrics")[1], re.MULTILINE)))

    def ended(self):
        """The last records of flows that it has written so far."""
        lines = self.records.read_text().splitlines()[:-1]
        found = (json.loads(line) for line in lines if '"type":"flow"' in line)
        return [flow for flow in found if flow["final"] and flow.get("true_label")]

    def generation(self):
        return self.ended()[-1]["model_generation"]


def wait_for(what, is_so):
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > PATIENCE_S:
            sys.exit(f"in vain: {what}")
        time.sleep(0.2)
    return time.monotonic() - began


def score(flows):
    """The share of flows that are told rightly to be large, or not."""
    large = ("large", "huge")
    right = [(flow["label"] in large) == (flow["true_label"] in large) for flow in flows]
    return sum(right) / max(len(right), 1)


def signer(work):
    """The public key, and the command that signs; nothing without minisign."""
    if not shutil.which("minisign"):
        print("SKIPPED signatures: needs minisign")
        return "", []
    key, secret = work / "key.pub", work / "secret"
    subprocess.run(["minisign", "-G", "-W", "-p", key, "-s", secret], check=True,
                   capture_output=True)
    return key, ["minisign", "-S", "-s", str(secret), "-m"]


def write_bad(work, early, sign):
    """A model that takes large flows for small ones, and half a model."""
    samples = volume.read([early], volume.input_of(DEPTHS))
    edges = bundle.read(work / "static").target[1]
    falling = np.sort(samples.to_come)[::-1]
    samples.to_come = falling[np.argsort(np.argsort(samples.to_come))]
    volume.write(work / "permuted", "volume", "1.1.0", samples, volume.fit(samples, edges=edges))
    if sign:
        fleet.sign(sign, work / "permuted")
    shutil.copytree(work / "static", work / "half")
    model = work / "half" / "model.onnx"
    model.write_bytes(model.read_bytes()[:1000])


def offer_bad(fenxi, work):
    for name, refusal in (("permuted", "not_better"), ("half", "damaged")):
        code, said = fenxi.ctl("model", "offer", str(work / name))
        print(said.strip())
        assert code != 0 and f"{refusal}: " in said, said
        assert fenxi.offers(refusal) == 1, refusal
    assert fenxi.offers("judged") == 0


def pull(work):
    """What comes of the newest bundle that the tuner has published."""
    args = ["--from", work / "tuned", "--into", work / "pulled", "--control", work / "ctl.sock",
            "--task", "default", "--once"]
    start = "from fenxi_train import fleet; import sys; fleet.main(sys.argv[1:])"
    found = subprocess.run([sys.executable, "-c", start, *map(str, args)], capture_output=True,
                           text=True, check=True)
    print(found.stderr.strip())
    return found.stderr


def offer_changed(fenxi, work):
    """What was published, but not by the owner of the key."""
    latest = json.loads((work / "tuned" / fleet.LATEST).read_text())
    shutil.copytree(work / "tuned" / latest["name"], work / "changed")
    manifest = work / "changed" / "model.toml"
    manifest.write_text(manifest.read_text() + "# more\n")
    for refusal in ("forged", "unsigned"):
        said = fenxi.ctl("model", "offer", str(work / "changed"))[1]
        assert f"{refusal}: " in said and fenxi.offers(refusal) == 1, said
        (work / "changed" / fleet.SIGNATURE).unlink(missing_ok=True)


def tuner(work, sign):
    args = ["--learn", work / "learn.sock", "--control", work / "ctl.sock", "--task", "default",
            "--like", work / "static", "--into", work / "tuned", "--every", "1",
            "--window", "3000", *(["--sign", shlex.join(sign)] if sign else [])]
    start = "from fenxi_train.__main__ import tune; tune()"
    log = open(work / "tune.log", "w")
    return subprocess.Popen([sys.executable, "-c", start, *map(str, args)], stdout=log, stderr=log)


def main(program, work):
    early = work / "early.jsonl"
    write_early(early)
    train = [sys.executable, "-m", "fenxi_train", "volume", early, "--out", work / "static",
             "--depths", ",".join(map(str, DEPTHS)), "--edges", "0.4,0.7,0.85", "--name", "volume"]
    subprocess.run(train, check=True)
    is_late, is_over = multiprocessing.Event(), multiprocessing.Event()
    sender = multiprocessing.Process(target=send, args=(is_late, is_over))
    key, sign = signer(work)
    fenxi = Fenxi(program, work, work / "static", key)
    processes = [fenxi.process]
    try:
        sender.start()
        write_bad(work, early, sign)
        wait_for("flows of early traffic", lambda: len(fenxi.ended()) > 1000)
        offer_bad(fenxi, work)
        assert fenxi.generation() == 0
        known = score(fenxi.ended()[-500:])

        processes.append(tuner(work, sign))
        is_late.set()
        before = len(fenxi.ended())
        took = wait_for("a promotion", lambda: fenxi.offers("promoted") > 0)
        wait_for("flows of the promoted model",
                 lambda: sum(f["model_generation"] == 1 for f in fenxi.ended()) > 500)
        processes[1].kill()
        late = fenxi.ended()[before:]
        static, learned = (score([f for f in late if f["model_generation"] == g]) for g in (0, 1))
        print(fenxi.ctl("model", "offers")[1])
        print(f"promoted after {took:.0f} s; right on early traffic {known:.2f}, on late traffic "
              f"the static model {static:.2f}, the promoted one {learned:.2f}")
        # The first model that is promoted may have seen little late traffic, and 500 flows leave
        # chance 0.02 of play.
        assert static < 0.7 and min(known, learned) > static + 0.1

        # The tuner is gone; fenxi goes on, and an operator may go back.
        count = len(fenxi.ended())
        wait_for("more flows", lambda: len(fenxi.ended()) > count + 100)
        code, said = fenxi.ctl("model", "back")
        print(said.strip())
        assert code == 0 and str(work / "static") in said and fenxi.offers("back") == 1, said
        wait_for("flows of the model before", lambda: fenxi.generation() > 1)

        # A router elsewhere would pull what the tuner published.
        if sign:
            offer_changed(fenxi, work)
        judged, said = fenxi.offers("judged"), pull(work)
        assert "/pulled/model-" in said and pull(work) == "", said
        assert fenxi.offers("judged") > judged or "refused: " in said, said
        assert fenxi.offers("unsigned") == bool(sign), said
    finally:
        is_over.set()
        for process in processes:
            process.send_signal(signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
