"""fenxi-tune against a fenxi of Python, which sends samples and takes offers."""

import dataclasses
import errno
import itertools
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
from test_volume import HEAVY, LIGHT, samples

from fenxi_train import (
    bundle, check, forest, replay, runtime, servers, tune, tuner, volume, walkforward, wire,
)
from fenxi_train.errors import Refusal

SIZE = forest.Size(trees=3, leaf=3, features=0.4)
DEPTHS = (3, 5)
EDGES = [5_000, 20_000, 1_200_000]


def told(found, edges=EDGES):
    """With the label of the truth, as fenxi sends it."""
    for sample in found:
        band = int(np.searchsorted(edges, sample["truth"]["bytes_to_come"], side="right"))
        sample["truth"]["label"] = volume.BANDS[band]
    return found


def arrays(found, depths=DEPTHS):
    input = volume.input_of(depths)
    rows = [(*volume.asked_of(s, input), s["truth"]["bytes_to_come"], "", 0.0) for s in found]
    return volume.Samples(input, *(np.array(column) for column in zip(*rows)))


def like(folder, found, depths=DEPTHS):
    """A bundle of a model of these samples."""
    known = arrays(found, depths)
    volume.write(folder, "volume", "1.0.0", known, volume.fit(known, SIZE, edges=EDGES))
    return bundle.read(folder)


def frame(found, **others):
    return {
        "version": 1,
        "time_us": 1_700_000_000_000_000,
        "dropped": 0,
        "samples": found,
        **others,
    }


def packed(content):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<I", len(text)) + text


class Fenxi(threading.Thread):
    """Listens on a socket; the next of `ways`, functions, serves the next connection."""

    def __init__(self, path, *ways):
        super().__init__(daemon=True)
        self.path, self.ways, self.socket = path, ways, socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen()
        self.start()

    def run(self):
        for way in self.ways:
            stream, _ = self.socket.accept()
            with stream:
                way(stream)


def sends(*parts):
    return lambda stream: [stream.sendall(part) for part in parts]


class Said(list):
    """The lines that were said, without repetitions as tune.speaker has it."""

    def __call__(self, subject, text):
        if text and (subject, text) not in self:
            self.append((subject, text))

    def of(self, subject):
        return [text for about, text in self if about == subject]


@pytest.fixture
def service(tmp_path):
    """A service whose offers are answered by `answers`, in turn; the last one stays."""

    def made(answers=((200, "on trial"),), window=2_000, teacher=None, found=None,
             kind=tuner.Forest, **others):
        own = like(tmp_path / "like", found or samples(depths=DEPTHS))
        into = tmp_path / "into"
        into.mkdir()
        args = types.SimpleNamespace(
            task="volume",
            into=into,
            window=window,
            every=1,
            rounds=2,
            range=0.5,
            false_alarm_hours=1000,
            **others,
        )
        offers, say = [], Said()

        def offer(folder, task):
            offers.append((folder.name, bundle.read(folder)))
            answer = answers[min(len(offers), len(answers)) - 1]
            if isinstance(answer, Exception):
                raise answer
            return answer

        teacher = teacher(own) if teacher else tuner.Flow(own)
        learns = kind(own, window, *([SIZE] if kind is tuner.Forest else []))
        service = tune.Service(args, learns, teacher, offer, say)
        return service, offers, say

    return made


def work(service, found, rounds):
    """Rounds of as many samples each; the clock is due at each frame."""
    size = len(found) // rounds
    frames = [frame(found[i * size : (i + 1) * size]) for i in range(rounds)]
    clock = itertools.count(0, 10)
    service.run(frames, clock=lambda: next(clock))


def test_frames_in_pieces_lies_and_a_peer_that_goes_away(tmp_path):
    good = packed(frame([{"a": 1}]))
    silent = packed(frame([]))
    cases = [
        sends(*(good[i : i + 1] for i in range(len(good))), silent),
        sends(struct.pack("<I", wire.FRAME_MAX + 1) + good),
        sends(packed(b"{nothing")),
        sends(packed({"version": 1})),
        sends(packed(frame([], version=2))),
        sends(good[:-1]),
        sends(),
        sends(good),
    ]
    Fenxi(tmp_path / "learn", *cases)
    said, waits = Said(), []
    found = wire.frames(tmp_path / "learn", said, sleep=waits.append)
    assert [len(f["samples"]) for f in itertools.islice(found, 3)] == [1, 0, 1]
    lines = " ".join(said.of("learn"))
    for text in (
        "connected",
        "connection closed",
        "a frame of 1,048,577 bytes",
        "not JSON",
        "without samples",
        "version 2",
    ):
        assert text in lines, lines
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_a_fenxi_that_starts_later_is_found(tmp_path):
    def sleep(_):
        if not (tmp_path / "learn").exists():
            Fenxi(tmp_path / "learn", sends(packed(frame([]))))

    said = Said()
    assert next(wire.frames(tmp_path / "learn", said, sleep))["samples"] == []
    assert "No such file" in said.of("learn")[0]


def test_requests_are_a_line_and_replies_are_read_whole(tmp_path):
    requests = []

    def replies(*parts):
        def way(stream):
            requests.append(json.loads(stream.makefile().readline()))
            sends(*parts)(stream)

        return way

    Fenxi(
        tmp_path / "c",
        replies(b'{"code":200,', b'"done":"on trial"}\n'),
        replies(b'{"code":422,"error":"bad hash"}\n'),
        replies(b"nothing\n"),
        replies(),
    )
    ask = lambda: wire.asked(
        tmp_path / "c", {"command": "model_offer", "dir": "/b", "task": "volume"}
    )
    assert ask() == (200, "on trial")
    assert ask() == (422, "bad hash")
    for _ in range(2):
        with pytest.raises(wire.Broken, match="no reply"):
            ask()
    assert requests[0] == {"command": "model_offer", "dir": "/b", "task": "volume"}
    with pytest.raises(wire.Broken, match="No such file"):
        wire.asked(tmp_path / "none", {})


@pytest.mark.parametrize("kind", tune.TUNERS.values())
def test_what_is_offered_is_sound_and_like_the_first(service, kind):
    made, offers, _ = service(kind=kind)
    work(made, told(samples(15, 40, seed=2, depths=DEPTHS)), 12)
    assert len(offers) >= 3
    for name, offered in offers:
        assert offered.manifest["name"] == "volume" and offered.manifest["version"].startswith(
            "1.0.0+"
        )
        assert offered.labels == made.tuner.like.labels and offered.target == made.tuner.like.target
        assert offered.input == made.tuner.like.input
        learn = offered.manifest["learn"]
        assert 0 <= learn["stability"] <= 0.5 and 0 < learn["until_us"] < 1200 * 60_000_000
    assert check.problems(bundle.read(made.into / offers[-1][0])) == []
    batch, _ = tuner.batch_of(
        told(samples(3, 40, seed=9, depths=DEPTHS)), made.teacher, made.tuner.like
    )
    stability, outputs = made.tuner.evaluate(batch)
    assert 0 < stability < 1 and outputs.shape == (240, 4)
    made.tuner.freeze(made.into / "last", "1.0.0", {})
    frozen = runtime.run_all(bundle.read(made.into / "last").session(), batch.series, batch.context)
    assert np.allclose(frozen, outputs, atol=1e-4)
    assert ((outputs.argmax(axis=1) > 1) == (batch.classes > 1)).mean() > 0.95
    status = json.loads((made.into / "status.json").read_text())
    assert status["answer"] == "on trial" and status["rounds"] == 12 and 0 < status["new_loss"] < 1


def test_a_network_does_not_forget_what_new_traffic_lacks(tmp_path):
    """Where nothing is rehearsed, it does."""
    found = told(samples(15, 40, seed=2, depths=DEPTHS))
    own = like(tmp_path / "like", found)
    of = lambda some: tuner.batch_of(some, tuner.Flow(own), own)[0]
    is_heavy = lambda sample: sample["truth"]["bytes_to_come"] > 20_000
    light = of([s for s in found if not is_heavy(s)])
    heavy = of([s for s in told(samples(5, 40, seed=9, depths=DEPTHS)) if is_heavy(s)])
    shape = dataclasses.replace(replay.SHAPE, steps=400)
    kept, lost = (replay.Network(own, 1_000, shape) for _ in range(2))
    said = lambda network: float((network.evaluate(heavy)[1].argmax(axis=1) > 1).mean())
    for network in kept, lost:
        network.adapt(of(found))
    assert min(said(kept), said(lost)) > 0.9
    for _ in range(6):
        for rows in lost.rows:
            rows.clear()
        for network in kept, lost:
            network.adapt(light)
    assert said(kept) > 0.9 and said(lost) < 0.5
    assert all(len(rows) <= rows.maxlen == 1_000 * len(DEPTHS) // 4 for rows in kept.rows)


def test_a_refusal_is_told_and_learning_goes_on(service):
    made, offers, said = service(
        answers=((422, "not better than the counter"), wire.Broken("gone"), (200, "on trial"))
    )
    work(made, told(samples(15, 40, seed=2, depths=DEPTHS)), 12)
    assert len(offers) >= 3
    lines = said.of(None)
    assert "refused: not better than the counter" in lines[0] and "offered: on trial" in lines[1]
    assert said.of("offer") == ["not offered: gone"]
    kept = sorted(folder.name for folder in made.into.glob("model-*"))
    assert kept == [name for name, _ in offers][2:], "neither is kept"
    assert len(made.offered) == len(offers) - 1, "what was not received may be offered again"


def test_the_same_content_is_never_offered_twice(service, monkeypatch):
    made, offers, _ = service()
    found = told(samples(10, 40, seed=2, depths=DEPTHS))
    work(made, found, 4)
    assert len(offers) == 1
    monkeypatch.setattr(made.tuner, "adapt", lambda batch: None)
    work(made, found, 4)
    last = len(offers)
    again = tune.Service(made.args, made.tuner, made.teacher, made.offer_to, made.say)
    work(again, found, 4)
    assert last == len(offers) == 2 and again.number > 2, "not by the next service either"
    assert len(list(made.into.glob("model-*"))) == 2


def test_what_fenxi_has_not_looked_at_may_be_offered_again(service, monkeypatch):
    made, offers, _ = service(answers=((200, "on trial"), (409, "under way"), (200, "on trial")))
    found = told(samples(10, 40, seed=2, depths=DEPTHS))
    work(made, found, 4)
    monkeypatch.setattr(made.tuner, "adapt", lambda batch: None)
    work(made, found, 12)
    assert len(offers) == 3 and len(made.offered) == 2


def test_a_stability_that_moves_by_chance_has_settled(service):
    made, _, _ = service()
    made.losses.extend([0.40, 0.47])
    assert made.spread() > 0.15
    made.tuner.error = 0.03
    assert made.spread() == 0
    made.losses.append(0.70)
    assert made.spread() > 0.2


def test_five_bundles_are_kept(service):
    made, offers, _ = service(window=300)
    (made.into / "model-mine").mkdir()
    work(made, told(samples(24, 40, seed=2, depths=DEPTHS)), 19)
    assert len(offers) > 6
    kept = sorted(folder.name for folder in made.into.glob("model-0*"))
    assert kept == [name for name, _ in offers][-5:] and (made.into / "model-mine").exists()


def test_a_bundle_in_use_is_kept_however_old_and_all_while_nobody_knows(service):
    made, offers, _ = service(window=300)
    asks = []

    def in_use():
        asks.append(len(offers))
        if len(asks) == 1:
            raise wire.Broken("gone")
        return {offers[0][1].manifest["sha256"]}

    made.in_use = in_use
    work(made, told(samples(24, 40, seed=2, depths=DEPTHS)), 19)
    assert asks[0] == 6 and len(asks) > 1
    kept = sorted(folder.name for folder in made.into.glob("model-0*"))
    names = [name for name, _ in offers]
    assert kept == [names[0], *names[-5:]]


def test_what_was_offered_and_not_answered_stays(service):
    made, offers, said = service(answers=(wire.Unanswered("timed out"),))
    work(made, told(samples(10, 40, seed=2, depths=DEPTHS)), 4)
    assert "not answered: timed out" in said.of("offer")[0]
    assert (made.into / offers[0][0]).is_dir() and not made.offered


def test_a_model_of_classes_is_offered_too(service):
    made, offers, _ = service()
    del made.tuner.like.manifest["target"]
    work(made, told(samples(10, 40, seed=2, depths=DEPTHS)), 4)
    assert len(offers) == 1 and offers[0][1].target is None


def test_a_full_disk_is_told_once(service, monkeypatch):
    made, offers, said = service()
    full = OSError(errno.ENOSPC, "No space left on device")

    def fails(*_, **__):
        raise full

    monkeypatch.setattr(bundle.tempfile, "mkdtemp", fails)
    monkeypatch.setattr(tune.pathlib.Path, "write_text", fails)
    found = told(samples(15, 40, seed=2, depths=DEPTHS))
    work(made, found, 12)
    assert offers == [] and made.rounds == 12
    assert (
        len(said.of("disk")) == len(said.of("status")) == 1
        and "No space left" in said.of("disk")[0]
    )
    monkeypatch.undo()
    work(made, found, 4)
    assert offers and (made.into / "status.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"elements": None},
        {"elements": [[1, 2], [3], [4, 5]]},
        {"proto": "six"},
        {"truth": "huge"},
        {"weight": -1},
        {"began_us": 2**70},
        {"context": [1]},
        {"output": {"label": "huge"}},
        {"output": {"label": [], "confidence": 2, "generation": 1}},
        {"server_port": float("nan")},
        {"elements": [[10**400, 0]] * 3},
    ],
)
def test_strange_samples_are_left_out(service, change):
    made, _, said = service()
    found = told(samples(5, 40, seed=2, depths=(3,)))
    work(
        made,
        [
            {**found[0], **change},
            *found,
            "none",
            {},
            {**found[1], "task": "apps"},
            {**found[2], "elements": [[1, 1]]},
        ],
        1,
    )
    assert made.strange == 3 and len(said.of("samples")) == 1
    assert len(made.tuner.rows[3]) == len(found)


def test_flows_that_were_cut_teach_nothing(service):
    made, _, _ = service()
    made.take(frame([{**s, "truth": None} for s in samples(5, 40, depths=DEPTHS)], dropped=7))
    made.round()
    assert made.rounds == 0 and not made.fresh and made.dropped == 7


def test_drift_is_told_and_in_the_status(service):
    made, _, said = service()
    found = samples(80, 40, seed=2, depths=(3,))
    for number, sample in enumerate(found):
        sample["server_port"] = 443 if number % 3 and number < 2_800 else 8443
        made.take(frame([sample], time_us=number * 1_000_000))
    lines = [line for line in said.of(None) if line.startswith("drift: server_port ")]
    status = json.loads((made.into / "status.json").read_text())
    alarms = [alarm for alarm in status["alarms"] if alarm["what"] == "server_port"]
    assert len(lines) == len(alarms) == 1 and alarms[0]["value"] > alarms[0]["bound"]
    assert 2_800_000_000 <= alarms[0]["time_us"] < 3_200_000_000


def test_classes_are_learned_from_an_operators_labels(service, tmp_path):
    """Labels come after the flows; a label that the model does not have teaches nothing."""
    labels = tmp_path / "labels.jsonl"
    found = samples(12, 40, seed=2, depths=(3,))
    made, _, said = service(teacher=lambda own: tuner.Operator(own, labels))
    work(made, found, 2)
    assert made.rounds == 0 and "labels.jsonl" in said.of("labels")[0]
    assert len(made.fresh) == len(found)
    answers, tellings, lines = [(422, "no such task"), (200, "taken")], [], []
    made.tell_to = lambda flows: (tellings.append(flows), answers[len(tellings) - 1])[1]
    for number, sample in enumerate(found):
        name = volume.BANDS[3 if sample["truth"]["bytes_to_come"] > 20_000 else 0]
        first = np.datetime64(sample["began_us"], "us").item().isoformat() + "Z"
        lines.append(
            {
                "first": first,
                "proto": 6,
                "dst_port": 443,
                "label": "strange" if number < 40 else name,
            }
            | ({"src_port": 40_000} if number else {})
        )
    labels.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made.round()
    assert made.rounds == 1 and len(made.fresh) == 40
    (flows,) = tellings
    assert len(flows) == len({s["began_us"] for s in found}) - 1, "one has no src_port"
    times = [flow["first_us"] for flow in flows]
    assert times == sorted(times) and flows[0].keys() == {
        "proto", "src_port", "dst_port", "first_us", "label",
    }
    assert said.of("truth") == ["labels refused: no such task"]
    batch, later = tuner.batch_of(found, made.teacher, made.tuner.like)
    _, outputs = made.tuner.evaluate(batch)
    assert (outputs.argmax(axis=1) == batch.classes).mean() > 0.95 and len(later) == 40
    labels.write_text("[]\n")
    made.round()
    assert len(said.of("labels")) == 2 and made.teacher.by_flow, "what was known stays"


def test_bundles_that_samples_cannot_teach_are_refused(tmp_path):
    own = like(tmp_path / "b", samples(depths=DEPTHS))
    own.input.__dict__["features"] = ("tcp_flags",)
    for kind in tune.TUNERS.values():
        with pytest.raises(Refusal, match="feature tcp_flags: samples do not hold it"):
            kind(own)
    del own.manifest["target"]
    with pytest.raises(Refusal, match="a teacher is needed: --labels"):
        tuner.Flow(own)


def test_usage(tmp_path, capsys):
    like(tmp_path / "like", samples(depths=DEPTHS))
    options = ["--learn", tmp_path / "learn", "--control", tmp_path / "control", "--task", "volume"]
    for extra, code, text in (
        (["--like", tmp_path / "none", "--into", tmp_path / "i"], 66, "fenxi-tune: "),
        (["--like", tmp_path / "like", "--into", tmp_path / "no/such"], 73, "No such file"),
        (["--into", tmp_path / "i"], 64, "fenxi-tune: the following arguments are required"),
    ):
        try:
            found = tune.main([str(o) for o in options + extra])
        except SystemExit as end:
            found = end.code
        assert found == code and text in capsys.readouterr().err


def test_the_program_learns_offers_and_ends_when_told(tmp_path):
    like(tmp_path / "like", samples(depths=DEPTHS))
    offered, found = threading.Event(), told(samples(15, 40, seed=2, depths=DEPTHS))

    def learn(stream):
        for i in range(0, len(found), 400):
            stream.sendall(packed(frame(found[i : i + 400])))
        while not offered.wait(0.5):
            stream.sendall(packed(frame(found[:200])))

    def control(stream):
        request = json.loads(stream.makefile().readline())
        assert request["task"] == "volume" and check.problems(bundle.read(request["dir"])) == []
        stream.sendall(b'{"code":200,"done":"on trial"}\n')
        offered.set()

    Fenxi(tmp_path / "learn", learn)
    Fenxi(tmp_path / "control", control)
    options = {"learn": "learn", "control": "control", "like": "like", "into": "into"}
    command = [f"--{name}={tmp_path / path}" for name, path in options.items()]
    command += ["--task=volume", "--every=1", "--rounds=1", "--range=1"]
    program = [sys.executable, "-c", "from fenxi_train.__main__ import tune; tune()", *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, text=True) as running:
        assert offered.wait(120)
        while "on trial" not in (tmp_path / "into/status.json").read_text():
            time.sleep(0.1)
        running.terminate()
        _, err = running.communicate(timeout=60)
    assert running.returncode == 0 and "offered: on trial" in err and "connected" in err, err


DRIFT_HOUR, HOURS, PER_HOUR = 4, 8, 600


def hours(seed=3):
    """Flows by the hour; a few are downloads, of very different sizes.  At DRIFT_HOUR all servers
    move behind one address, where downloads and others exchange their ports and first lengths, and
    a tunnel takes 80 bytes of each packet."""
    rng, memory, made = random.Random(seed), servers.Memory(), []
    for hour in range(HOURS):
        late, flows = hour >= DRIFT_HOUR, []
        for i in range(PER_HOUR):
            heavy, now = rng.random() < 0.04, hour * volume.HOUR_US + i * volume.HOUR_US // PER_HOUR
            server = "203.0.113.5" if late else HEAVY if heavy else LIGHT
            port = 443 if heavy != late else 8443
            total = int(10 ** rng.gauss(5.8, 0.4)) if heavy else rng.randint(1_000, 10_000)
            context = dict(zip(servers.FEATURES, memory.begin(6, server, port, now)))
            memory.end(6, server, port, total, 1_000_000)
            full, asks = (1420, 500) if late else (1500, 580)
            reply = full if heavy != late else rng.randint(100, 700)
            elements = [[asks + rng.randint(-30, 30), 0], [-reply, 20_000], [-reply, 21_000]]
            flows.append(
                {
                    "task": "volume",
                    "proto": 6,
                    "server_port": port,
                    "began_us": now,
                    "elements": elements,
                    "context": context,
                    "truth": {"bytes_to_come": total},
                    "weight": 1.0,
                }
            )
        made.append(told(flows))
    return made


def test_scripted_drift(tmp_path):
    """What learns on is as good as what knows all, and far better than what does not learn: shares
    of the bytes that the 5 % of highest rank carry."""
    by_hour, depths = hours(), (3,)
    own = like(tmp_path / "like", by_hour[0] + by_hour[1], depths)
    still = volume.fit(arrays(by_hour[0] + by_hour[1], depths), SIZE, edges=EDGES)
    models = {"adapted": tuner.Forest(own, 1_200, SIZE), "all": tuner.Forest(own, 10**6, SIZE)}
    score = {name: [] for name in ("none", *models)}
    for hour, found in enumerate(by_hour):
        truth = arrays(found, depths)
        batch, _ = tuner.batch_of(found, tuner.Flow(own), own)
        if hour > DRIFT_HOUR:
            ranks = {name: model.evaluate(batch)[1] @ still.means for name, model in models.items()}
            ranks["none"] = still.ranks(truth)
            for name, rank in ranks.items():
                score[name].append(walkforward.covered(rank, truth.to_come, truth.weights, 0.05))
        for model in models.values():
            model.adapt(batch)
    means = {name: float(np.mean(found)) for name, found in score.items()}
    print(means)
    assert means["adapted"] >= means["all"] - 0.02 and means["adapted"] >= means["none"] + 0.10, (
        means
    )
