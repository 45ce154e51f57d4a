"""Volume: a model learns what servers' flows weigh, its bundle is sound, and wrong samples are refused."""

import gzip
import json
import os
import random

import numpy as np
import pytest

from fenxi_train import bundle, check, forest, runtime, servers, volume, walkforward

HEAVY, LIGHT = "192.0.2.7", "198.51.100.9"


def samples(captures=12, flows=40, seed=1, depths=(3, 5)):
    """Flows whose weight is their server's, as the memory of servers saw them."""
    rng, memory, made = random.Random(seed), servers.Memory(), []
    for number in range(captures * flows):
        heavy, now = rng.random() < 0.2, number * 60_000_000
        server, port = (HEAVY if heavy else LIGHT), 443
        total = rng.randint(900_000, 2_000_000) if heavy else rng.randint(3_000, 9_000)
        context = dict(zip(servers.FEATURES, memory.begin(6, server, port, now)))
        memory.end(6, server, port, total, 1_000_000)
        for depth in depths:
            elements = [[rng.choice((-1, 1)) * rng.randint(60, 1500), i * 1000] for i in range(depth)]
            made.append({"task": "volume", "proto": 6, "server_port": port, "began_us": now, "elements": elements, "context": context,
                         "truth": {"bytes_to_come": total - 1000 * depth // 5}, "capture": f"c{number // flows}"})
    return made


def save(path, content):
    path.write_text("".join(json.dumps(s) + "\n" for s in content))
    return str(path)


@pytest.fixture
def table_of_samples(tmp_path):
    return save(tmp_path / "samples.jsonl", samples())


def test_the_memory_of_servers_gives_these_numbers():
    memory, second = servers.Memory(), 1_000_000
    assert memory.begin(6, "192.0.2.1", 443, 0) == (12.220947265625, 12.0, 16.0, 0.0, 31.676380634773523)
    memory.end(6, "192.0.2.1", 443, 14_000_000, 20 * second)
    known = (23.339382648468018, 21.363956311602653, 22.573901754102593, 1.0, 25.8)
    assert memory.begin(6, "192.0.2.1", 443, 60 * second)[:4] == known[:4]
    near = memory.begin(6, "192.0.2.9", 443, 61 * second)
    far = memory.begin(17, "2001:db8::1", 443, 62 * second)
    assert known[0] > near[0] > far[0] > 12.3 and near[3] == 0
    assert memory.begin(6, "192.0.2.1", 443, 59 * second)[4] == 0, "time stepped back"
    for _ in range(40):
        memory.end(6, "192.0.2.1", 443, 10, second)
    assert memory.begin(6, "192.0.2.1", 443, 70 * second)[3] == servers.FLOWS_MAX


@pytest.mark.parametrize("x", [0, 1, 2, 3, 7, 1000, 2**40, 2**52 - 1])
def test_the_logarithm_of_the_memory_is_near_the_real_one(x):
    assert abs(servers.log2(x) - np.log2(x + 1)) < 0.0861


def test_a_bundle_of_bands_is_sound(fenxi_train, table_of_samples, tmp_path):
    code, out, err = fenxi_train("volume", table_of_samples, "--out", tmp_path / "b", "--depths", "3,5", "--trees", "5", "--edges", "0.5,0.7,0.9")
    assert code == 0 and "5 trees with" in out, err
    made = bundle.read(tmp_path / "b")
    assert check.problems(made) == [] and tuple(made.labels) == volume.BANDS
    of, edges = made.target
    assert of == "volume" and edges == sorted(set(edges)) and len(edges) + 1 == len(volume.BANDS)
    assert made.manifest["context"] == ["protocol", "server_port", *servers.FEATURES]
    read = volume.read([table_of_samples], made.input)
    found = runtime.run_all(made.session(), read.series, read.context)
    heavy = read.to_come > 500_000
    assert np.median(found[heavy, -1]) > 5 * np.quantile(found[~heavy, -1], 0.9)


def test_the_graph_computes_what_the_model_does(table_of_samples):
    read = volume.read([table_of_samples], volume.input_of((3, 5)))
    made = volume.fit(read, forest.Size(trees=5, leaf=3, features=0.4), shares=(0.5, 0.7, 0.9))
    probabilities = made.probabilities(read)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert (made.means[1:] >= made.means[:-1]).all()


def test_without_servers_nothing_local_is_read(fenxi_train, table_of_samples, tmp_path):
    assert fenxi_train("volume", table_of_samples, "--out", tmp_path / "b", "--depths", "3,5", "--no-servers")[0] == 0
    made = bundle.read(tmp_path / "b").manifest
    assert made["context"] == ["protocol", "server_port"]


def test_without_times_only_lengths_are_read(fenxi_train, table_of_samples, tmp_path):
    assert fenxi_train("volume", table_of_samples, "--out", tmp_path / "b", "--depths", "3,5", "--no-times")[0] == 0
    made = bundle.read(tmp_path / "b")
    assert made.manifest["features"] == ["signed_length"] and check.problems(made) == []


def test_a_blank_model_without_servers_says_the_lowest_band_of_all(fenxi_train, table_of_samples, tmp_path):
    assert fenxi_train("volume", "--blank", "10000,100000,1000000", "--no-servers", "--out", tmp_path / "b")[0] == 0
    made = bundle.read(tmp_path / "b")
    assert check.problems(made) == [] and made.target == ("volume", [10_000, 100_000, 1_000_000])
    read = volume.read([table_of_samples], made.input)
    found = runtime.run_all(made.session(), read.series, read.context)
    assert (found.argmax(axis=1) == 0).all() and found.max() < 0.5


def test_a_blank_model_is_the_table_of_servers(fenxi_train, table_of_samples, tmp_path):
    """Until a model is shown better, the table is in use."""
    assert fenxi_train("volume", "--blank", "10000,100000,1000000", "--out", tmp_path / "b")[0] == 0
    made = bundle.read(tmp_path / "b")
    assert check.problems(made) == [] and made.target == ("volume", [10_000, 100_000, 1_000_000])
    read = volume.read([table_of_samples], made.input)
    found = runtime.run_all(made.session(), read.series, read.context)
    for depth in made.input.depths:
        own = (read.counts == depth) & (read.volume > 0)
        order = np.argsort(read.volume[own], kind="stable")
        expected = found[own][order] @ [1e3, 3e4, 3e5, 3e6]
        assert (np.diff(expected) >= -1e-3 * expected[1:]).all(), "ranks as the table does"
    likes = read.take(np.zeros(3, int))
    likes.context[:, made.input.context.index("server_volume")] = 8, 15, 24
    assert runtime.run_all(made.session(), likes.series, likes.context).argmax(axis=1).tolist() == [0, 0, 3]


def test_scores_in_order_of_time(fenxi_train, table_of_samples):
    code, out, err = fenxi_train("volume", table_of_samples, "--evaluate", "--depths", "3", "--first", "5", "--every", "3", "--marked", "0.2")
    assert code == 0, err
    assert "12 captures, 280 of 480 samples scored" in out
    for name in ("model ", "model learned once", "table of servers", "counter", "calibration error"):
        assert name in out
    code, _, err = fenxi_train("volume", table_of_samples, "--evaluate", "--depths", "3")
    assert code == 64 and "--first 54: there are only 12 captures" in err


def test_a_walk_knows_nothing_of_what_comes(table_of_samples):
    """Truths of later captures change no earlier rank."""
    read = volume.read([table_of_samples], volume.input_of((3,)))
    _, place = walkforward.order(read)
    size = forest.Size(trees=3, leaf=3, features=0.4)
    before, _ = walkforward.walk(read, place, (size, (0.5, 0.7, 0.9), 1), 4, 2, 9)
    read.to_come = np.where(place >= 8, 1.0, read.to_come)
    after, _ = walkforward.walk(read, place, (size, (0.5, 0.7, 0.9), 1), 4, 2, 9)
    assert (before["rank"][place < 10] == after["rank"][place < 10]).all()


def test_a_weight_counts_as_that_many_samples():
    rank, to_come = np.array([3.0, 2.0, 1.0]), np.array([10.0, 20.0, 30.0])
    twice = np.repeat([0, 1, 2], [1, 2, 1])
    weighted = walkforward.covered(rank, to_come, np.array([1.0, 2.0, 1.0]), 0.5)
    assert weighted == walkforward.covered(rank[twice], to_come[twice], np.ones(4), 0.5) == 30 / 80


@pytest.mark.parametrize("change, text", [
    ({"truth": {}}, "no bytes_to_come"),
    ({"proto": None}, "a number is missing or not finite"),
    ({"context": {}}, "no server_volume"),
    ({"elements": [[1, 2], [3], [4, 5]]}, "no sample"),
    ({"truth": {"bytes_to_come": -1}}, "out of range"),
    ({"truth": {"bytes_to_come": float("nan")}}, "out of range"),
    ({"weight": 0}, "out of range"),
    ({"began_us": 2**70}, "out of range"),
])
def test_a_wrong_sample_is_refused_by_line(fenxi_train, tmp_path, change, text):
    made = samples(depths=(3,))
    made[6] |= change
    code, _, err = fenxi_train("volume", save(tmp_path / "s.jsonl", made), "--out", tmp_path / "b")
    assert code == 65 and "line 7: " in err and text in err, err
    assert not (tmp_path / "b").exists()


def test_refusals_of_volume(fenxi_train, table_of_samples, table, tmp_path):
    few = save(tmp_path / "few.jsonl", samples(1, 9))
    for arguments, code, text in (
        (("volume", few, "--out", tmp_path / "b"), 65, "give 100 or more"),
        (("volume", table_of_samples, "--out", tmp_path / "b", "--edges", "0.9,0.5,0.99"), 64, "--edges: give 3 rising shares"),
        (("volume", "--out", tmp_path / "b"), 64, "give samples, or --blank"),
        (("volume", "--blank", "3,2,1", "--out", tmp_path / "b"), 64, "--blank: give 3 rising numbers"),
        (("volume", tmp_path / "none", "--out", tmp_path / "b"), 66, "none"),
        (("fit", table, "--out", tmp_path / "b", "--context", "server_volume"), 64, "volume learns from it"),
    ):
        found, _, err = fenxi_train(*arguments)
        assert found == code and text in err, err


@pytest.mark.skipif("VOLUME_SAMPLES" not in os.environ, reason="VOLUME_SAMPLES names no table of real samples")
def test_real_flows_in_order_of_time():
    with gzip.open(os.environ["VOLUME_SAMPLES"]) as file:
        assert json.loads(file.readline())["task"] == "volume"
    read = volume.read([os.environ["VOLUME_SAMPLES"]], volume.input_of((3,)))
    _, place = walkforward.order(read)
    learn = forest.Size(leaf=3, features=0.4), volume.EDGES, 1
    found, slowest = walkforward.walk(read, place, learn, 54, 10, 200)
    late = place >= 54
    score = lambda rank: walkforward.covered(rank[late], read.to_come[late], read.weights[late], 0.05)
    assert score(found["rank"]) > score(read.volume) + 0.03 and slowest < 5
