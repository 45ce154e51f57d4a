"""Publishing bundles; pulling them from a folder and a web server, friendly and hostile ones."""

import functools
import hashlib
import http.server
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
import types

import pytest
from test_tune import DEPTHS, Said, frame, told
from test_tune import service as service  # a fixture
from test_tune import work
from test_volume import samples

from fenxi_train import fleet, topic, tune, wire
from fenxi_train.errors import Refusal

TEXTS = {"model.toml": "name", "model.onnx": "net", "golden/inputs.csv": "1,2\n"}


def published(folder, number, **texts):
    """A bundle of these texts, the newest one of a folder."""
    made = folder / f"model-{number:08}"
    for file, text in {**TEXTS, **texts}.items():
        (made / file).parent.mkdir(parents=True, exist_ok=True)
        (made / file).write_text(text)
    fleet.publish(made, number)
    return made


@pytest.fixture
def served(tmp_path):
    """A folder, and the address of a web server that serves it."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        log_message = lambda *_: None

    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def puller(tmp_path):
    """A function that pulls once from a place, and what it offered and said."""
    into, offers, said = tmp_path / "into", [], Said()
    into.mkdir()

    def pull(place, answer=(200, "on trial")):
        def offer(folder):
            offers.append({path.relative_to(folder).as_posix(): path.read_text()
                           for path in folder.rglob("*") if path.is_file()})
            if isinstance(answer, Exception):
                raise answer
            return answer

        fleet.pull(fleet.source(str(place)), into, offer, said)

    return pull, into, offers, said


@pytest.mark.parametrize("way", [0, 1])
def test_the_newest_bundle_is_pulled_once_and_whole(served, puller, way):
    pull, into, offers, said = puller
    published(served[0], 6)
    published(served[0], 7, **{"model.toml": "seventh"})
    for _ in range(2):
        pull(served[way])
    assert offers == [{**TEXTS, "model.toml": "seventh"}]
    (kept,) = into.glob("model-*")
    assert kept.name.startswith("model-00000007-") and kept.stat().st_mode & 0o777 == 0o755
    assert said.of(None) == [f"{kept}: offered: on trial"]
    # The same name with another content, such as of a tuner that began again.
    published(served[0], 7, **{"model.toml": "again"})
    pull(served[way])
    assert offers[1]["model.toml"] == "again" and len(list(into.glob("model-*"))) == 2


def test_what_fenxi_refuses_is_not_kept_and_what_it_cannot_judge_comes_again(served, puller):
    pull, into, offers, said = puller
    published(served[0], 1)
    with pytest.raises(wire.Broken):
        pull(served[0], wire.Broken("no reply"))
    pull(served[0], (409, "another candidate is under way"))
    pull(served[0], (409, "another candidate is under way, at 12 flows by now"))
    assert len(offers) == 3 and len(said.of("offer")) == 1 and not list(into.iterdir())
    pull(served[0], (422, "unsigned"))
    pull(served[0])
    assert len(offers) == 4 and not list(into.glob("model-*"))
    for number in range(2, 9):
        published(served[0], number, **{"model.toml": str(number)})
        pull(served[0])
    kept = sorted(path.name[:14] for path in into.glob("model-*"))
    assert kept == [f"model-{number:08}" for number in range(4, 9)]


HOSTILE = [
    b"",
    b"[]",
    b"{nothing",
    b"[" * 60_000,
    b"x" * (fleet.LATEST_MAX + 1),
    {"name": "model-1"},
    {"name": "model-1", "files": []},
    {"name": "model-1", "files": {"model.onnx": 64 * "a"}},
    {"name": 1, "files": {"model.toml": 64 * "a"}},
    *({"name": name, "files": {"model.toml": 64 * "a"}}
      for name in ("", "..", ".hidden", "/etc", "a/b", "a\n", "a\0", 65 * "a", "%2e%2e")),
    *({"name": "model-1", "files": {"model.toml": 64 * "a", file: 64 * "a"}}
      for file in ("../x", "/etc/passwd", "golden/../../x", "a/b/c", "golden/.x", "a//b", "a/", "",
                   "a\\..\\x?", "a\n", ".ssh/x")),
    {"name": "model-1", "files": {"model.toml": "a"}},
    {"name": "model-1", "files": {"model.toml": None}},
    {"name": "model-1", "files": dict.fromkeys(
        ["model.toml", *(f"f{n}" for n in range(16))], 64 * "a")},
]


@pytest.mark.parametrize("latest", HOSTILE, ids=range(len(HOSTILE)))
def test_strange_indexes_are_refused(served, puller, tmp_path, latest):
    pull, into, offers, _ = puller
    text = latest if isinstance(latest, bytes) else json.dumps(latest).encode()
    (served[0] / fleet.LATEST).write_bytes(text)
    before = sorted(tmp_path.rglob("*"))
    for place in served:
        with pytest.raises(wire.Broken, match=fleet.LATEST):
            pull(place)
    assert offers == [] and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("way", [0, 1])
def test_a_bundle_that_is_not_as_the_index_says_leaves_nothing(served, puller, monkeypatch, way):
    pull, into, offers, _ = puller
    made = published(served[0], 1)
    (made / "model.onnx").write_text("other")
    with pytest.raises(wire.Broken, match="model.onnx: not as latest.json says"):
        pull(served[way])
    (made / "model.onnx").unlink()
    with pytest.raises(wire.Broken, match="model.onnx: (No such file|HTTP Error 404|Not Found)"):
        pull(served[way])
    published(served[0], 1, **{"model.onnx": "x" * 5000})
    monkeypatch.setattr(fleet, "BUNDLE_MAX", 4000)
    with pytest.raises(wire.Broken, match="more than [0-9,]+ bytes"):
        pull(served[way])
    # A file cannot be a folder as well.
    files = {"model.toml": hashlib.sha256(b"name").hexdigest(), "model.toml/x": 64 * "0"}
    latest = {"name": "model-00000001", "files": files}
    (served[0] / fleet.LATEST).write_text(json.dumps(latest))
    with pytest.raises((wire.Broken, OSError)):
        pull(served[way])
    assert offers == [] and not list(into.iterdir())


def test_a_folder_with_pipes_and_links(served, puller):
    pull, into, offers, _ = puller
    made = published(served[0], 1)
    (made / "model.onnx").unlink()
    os.mkfifo(made / "model.onnx")
    with pytest.raises(wire.Broken, match="no file"):
        pull(served[0])
    (made / "model.onnx").unlink()
    (made / "model.onnx").symlink_to("/etc/passwd")
    with pytest.raises(wire.Broken, match="symbolic links"):
        pull(served[0])
    assert offers == [] and not list(into.iterdir())


def test_servers_that_drip_lie_or_send_elsewhere(puller, monkeypatch):
    pull, into, offers, _ = puller
    monkeypatch.setattr(fleet, "FILE_S", 0.2)
    ways = {
        "/drip/latest.json": lambda out: [out.write(b"HTTP/1.0 200 OK\r\n\r\n")] + [
            (out.write(b" "), out.flush(), time.sleep(0.05)) for _ in range(20)],
        "/short/latest.json": lambda out: out.write(
            b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{}"),
        "/file/latest.json": lambda out: out.write(
            b"HTTP/1.0 302 x\r\nLocation: file:///etc/passwd\r\n\r\n"),
        "/ftp/latest.json": lambda out: out.write(
            b"HTTP/1.0 302 x\r\nLocation: ftp://127.0.0.1/x\r\n\r\n"),
        "/noise/latest.json": lambda out: out.write(b"\x00\xff\r\n"),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        log_message = lambda *_: None

        def do_GET(self):
            try:
                ways[self.path](self.wfile)
            except OSError:
                pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for path in ways:
            with pytest.raises(wire.Broken):
                pull(f"http://127.0.0.1:{server.server_port}{os.path.dirname(path)}")
        server.shutdown()
    for place in ("file:///etc", "ftp://127.0.0.1", "http://", "nothing://x", "http://[::1"):
        with pytest.raises(wire.Broken):
            pull(place)
    assert offers == [] and not list(into.iterdir())


def test_signing(tmp_path):
    made = published(tmp_path, 1)
    signs = "import sys; open(sys.argv[1] + '.minisig', 'w').write('signature')"
    fleet.sign([sys.executable, "-c", signs], made)
    assert (made / fleet.SIGNATURE).read_text() == "signature"
    (made / fleet.SIGNATURE).unlink()
    for command, why in (
        (["/nowhere/minisign"], "No such file"),
        (["true"], "no model.toml.minisig"),
        ([sys.executable, "-c", "print('Wrong password'); exit(2)"], "Wrong password"),
    ):
        with pytest.raises(wire.Broken, match=why):
            fleet.sign(command, made)


@pytest.mark.skipif(not shutil.which("minisign"), reason="needs minisign")
def test_minisign_signs(tmp_path):
    made = published(tmp_path, 1)
    keys = ["-p", tmp_path / "key.pub", "-s", tmp_path / "secret"]
    subprocess.run(["minisign", "-G", "-W", *keys], check=True, capture_output=True)
    fleet.sign(shlex.split(f"minisign -S -s {tmp_path}/secret -m"), made)
    verify = ["minisign", "-V", "-p", tmp_path / "key.pub", "-m", made / "model.toml"]
    subprocess.run(verify, check=True, capture_output=True)


def test_a_router_needs_neither_numpy_nor_another_package(tmp_path):
    code = "import sys; sys.path.insert(0, sys.argv[1]); from fenxi_train import fleet; " \
           "fleet.parser(); print('numpy' in sys.modules)"
    root = os.path.dirname(os.path.dirname(fleet.__file__))
    found = subprocess.run([sys.executable, "-S", "-c", code, root], capture_output=True, text=True)
    assert found.stdout == "False\n", found.stderr


def test_usage(tmp_path, capsys):
    options = ["--from", str(tmp_path), "--control", "c", "--task", "t", "--once", "--into"]
    assert fleet.main([*options, str(tmp_path / "no/such")]) == 73
    (tmp_path / "into/.pull-x").mkdir(parents=True)
    assert fleet.main([*options, str(tmp_path / "into")]) is None
    assert not list((tmp_path / "into").iterdir()), "nothing is left of a service that was killed"
    assert "nothing pulled: " in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        fleet.main(options[:-1])
    assert end.value.code == 64


def test_a_tuner_publishes_what_was_taken(service):
    made, offers, _ = service(answers=((422, "unsigned"), (200, "published")))
    work(made, told(samples(15, 40, seed=2, depths=DEPTHS)), 12)
    latest = json.loads((made.into / fleet.LATEST).read_text())
    taken = [name for name, _ in offers[1:]]
    assert taken and latest["name"] == taken[-1] == f"model-{latest['generation']:08}"
    assert set(latest["files"]) == {
        "model.toml", "model.onnx", "golden/inputs.csv", "golden/outputs.csv"}
    manifest = offers[-1][1].manifest
    hashes = [latest["files"][f"golden/{name}.csv"] for name in ("inputs", "outputs")]
    assert manifest["golden_sha256"] == hashes, "who signs model.toml signs all"


def test_routers_are_in_the_status(service, monkeypatch):
    made, _, _ = service()
    monkeypatch.setattr(tune, "ROUTERS_MAX", 2)
    found = told(samples(5, 40, seed=2, depths=(3,)))
    for router in ("a", "b", "c", 7, ["a"], "x" * 256, None):
        made.take(frame(found[:3], router=router, dropped=2))
    made.take(frame(found[:1], router="a", time_us=5))
    made.write_status()
    status = json.loads((made.into / "status.json").read_text())
    assert status["routers"] == {
        "a": {"samples": 4, "dropped": 2, "time_us": 5},
        "b": {"samples": 3, "dropped": 2, "time_us": 1_700_000_000_000_000},
    }
    assert status["dropped"] == 14 and len(made.fresh) == 22


class Messages:
    """What stands for confluent_kafka, and gives these messages."""

    class KafkaException(Exception):
        pass

    def __init__(self, *values):
        self.values, self.given, self.is_closed = list(values), None, False

    def Consumer(self, given):
        self.given = given
        if "no.such" in given:
            problem = types.SimpleNamespace(str=lambda: 'No such property: "no.such"')
            raise self.KafkaException(problem)
        return self

    def subscribe(self, topics):
        self.topics = topics

    def poll(self, _):
        value = self.values.pop(0)
        if value is None:
            return None
        error = types.SimpleNamespace(str=lambda: value) if isinstance(value, str) else None
        return types.SimpleNamespace(error=lambda: error, value=lambda: value)

    def close(self):
        self.is_closed = True


def test_frames_of_a_topic(monkeypatch):
    good = [json.dumps(frame([{"a": n}], router="r")).encode() for n in range(2)]
    given = Messages(None, "Connection refused", good[0], b"", b"{", b"[" * 60_000, b"{}", b"[]",
                     b"\xff", json.dumps(frame([], version=2)).encode(), good[1])
    monkeypatch.setitem(sys.modules, "confluent_kafka", given)
    said = Said()
    frames = topic.frames("k:9092", "samples", {"security.protocol": "ssl"}, said)
    assert [next(frames)["samples"][0]["a"] for _ in range(2)] == [0, 1]
    frames.close()
    assert given.is_closed and given.topics == ["samples"]
    assert given.given["bootstrap.servers"] == "k:9092"
    assert given.given["security.protocol"] == "ssl"
    assert said.of("kafka") == ["k:9092: Connection refused; tries again"]
    assert len(said.of("message")) == 3 and "version 2; this" in said.of("message")[-1]


def test_without_the_package_or_with_an_option_that_is_none(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(Refusal, match="pip install 'fenxi-train"):
        next(topic.frames("k:9092", "samples", {}, Said()))
    monkeypatch.setitem(sys.modules, "confluent_kafka", Messages())
    with pytest.raises(Refusal, match="--kafka: No such property"):
        next(topic.frames("k:9092", "samples", {"no.such": "1"}, Said()))
    options = ["--task", "t", "--like", "l", "--into", str(tmp_path)]
    for source in ([], ["--learn", "l", "--kafka", "k"], ["--kafka", "k", "--kafka-option", "x"]):
        with pytest.raises(SystemExit) as end:
            tune.main([*source, *options])
        assert end.value.code == 64
    assert "'x' is not NAME=VALUE" in capsys.readouterr().err
