"""Ports first: the table of ports, answers that contradict it, and flows of odd ports in training."""

import tomllib
from types import SimpleNamespace

import numpy as np
from conftest import FAST, rows, save

from fenxi_train import augment, bundle, calibrate, check, inputs, ports

FIRST = ("--depths", "2,3,5", "--context", "protocol,server_port", "--ports-first")


class Made(SimpleNamespace):
    def take(self, which):
        parts = {name: value[which] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return Made(**{**vars(self), **parts})


def flows_of(*found, names=("HTTP", "QUIC", "unknown")):
    """Flows as (protocol, port, class, group)."""
    protocols, numbers, classes, of = zip(*found)
    return Made(names=list(names), outlier=len(names) - 1, classes=np.array(classes), groups=np.array(of), midstream=np.zeros(len(found), bool),
                ports=np.stack([protocols, numbers], axis=1))


def test_a_port_needs_agreement_and_a_registration_counts_as_one_group():
    made = flows_of(
        *[(6, 9000, 0, "a")] * 8, *[(6, 9000, 0, "b")] * 2,  # two groups agree
        *[(6, 9001, 0, "a")] * 9,  # one group, and no registration
        *[(17, 443, 1, "a")] * 2,  # one group and the registration
        *[(6, 9002, 0, "a")] * 99, *[(6, 9002, 0, "b")] * 2, *[(6, 9002, 2, "c")] * 2,  # a large group does not speak for all
        *[(6, 9003, 2, "a")] * 5, *[(6, 9003, 2, "b")] * 5,  # everything else is no name
    )
    assert ports.table(made, 0.9) == {(6, 9000): (0, 1.0, 10), (17, 443): (1, 1.0, 2)}
    made.midstream[:10] = True
    assert set(ports.table(made, 0.9)) == {(17, 443)}


def test_a_port_of_a_held_out_flow_is_that_of_the_others():
    made = flows_of(*[(6, 9000, 0, g) for g in "aabbcc"], *[(6, 9001, 0, "a")] * 5)
    folds = np.array([0, 0, 1, 1, 2, 2, 0, 0, 0, 0, 0])
    assert list(ports.held_out(made, folds, 0.9)) == [0] * 6 + [-1] * 5


def test_answers_contradict_few_right_ports():
    count = 1000
    made = SimpleNamespace(classes=np.zeros(count, int), counts=np.full(count, 2), input=SimpleNamespace(depths=(1, 2)), outlier=2)
    guess = np.zeros(count, int)
    made.classes[900:] = 1  # the port is wrong of a tenth
    answer = np.tile([0.9, 0.1, 0.0], (count, 1))
    answer[900:] = [0.02, 0.98, 0.0]
    answer[:3] = [0.0, 0.0, 1.0], [0.06, 0.94, 0.0], [0.1, 0.9, 0.0]  # against ports that are right
    silent = np.tile([1.0, 0.0, 0.0], (count, 1))
    levels = ports.contradictions(made, {1: silent, 2: answer}, guess, 0.8)
    assert levels[0] == ports.NEVER and 0.9 < levels[1] < 0.94  # two of 900 are within three in a thousand


def test_the_walk_with_ports_first():
    a, b, unknown = np.eye(3)
    weak = 0.85 * b + 0.15 * a
    flows = [  # answers at two depths, elements, class by the port; class and what decided
        ((a, a), 2, 0, 0, "port"),
        ((b, a), 2, 0, 1, "contradiction"),
        ((weak, b), 2, 0, 1, "contradiction"),
        ((weak, weak), 2, 0, 0, "port"),
        ((a, unknown), 2, 0, -1, "contradiction"),
        ((a, unknown), 1, 0, 0, "port"),  # not asked at the second depth
        ((a, a), 0, 1, 1, "port"),  # known with the first packet
        ((b, b), 2, -1, 1, "depth 1"),
        ((weak, weak), 2, -1, 1, "not sure"),
        ((unknown, unknown), 2, -1, -1, "nothing"),
    ]
    answers, counts, guesses, classes, kinds = zip(*flows)
    seen = SimpleNamespace(classes=np.zeros(len(flows), int), counts=np.array(counts), outlier=2)
    by_depth = {depth: np.array([answer[i] for answer in answers]) for i, depth in enumerate((1, 2))}
    found = calibrate.walk(seen, by_depth, (1, 2), [0.9, 0.9], 0.7, np.array(guesses), [0.95, 0.9])
    assert (tuple(found[0]), tuple(found[1])) == (classes, kinds)
    never = calibrate.walk(seen, by_depth, (1, 2), [0.9, 0.9], 0.7, np.array(guesses), [1.0, 1.0])
    assert set(never[1][:7]) == {"port"}


def test_exchanged_ports_say_nothing():
    input = inputs.Input("data", (1,), ("signed_length",), ("protocol", "server_port"))
    context = np.tile(np.array([6, 443], np.float32), (2000, 1))
    context[1000:, 1] = 0
    series = np.full((2000, 1, 1), 100, np.float32)
    for share, kept in ((0.0, 1000), (1.0, 0)):
        _, made = augment.flows(np.random.default_rng(1), input, series, context, np.ones(2000, int), share)
        port = made[:, 1]
        assert (port == 443).sum() == kept and (port == 0).sum() > 300 and (port[port != 443] >= 1024).sum() > 300
        assert (made[:, 0] == 6).all() and (context[:1000, 1] == 443).all()


def test_a_bundle_with_ports_first(fenxi_train, tmp_path):
    table = save(tmp_path / "t.csv", rows(120))
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *FIRST, *FAST, "--int8", tmp_path / "i")
    assert code == 0, err
    for name in "bi":
        found = tomllib.loads((tmp_path / name / "model.toml").read_text())
        assert len(found["contradiction"]) == 3 and all(0 < c <= 1 for c in found["contradiction"])
        assert {p["port"] for p in found["ports"]} == {443, 53, 25}
        assert check.problems(bundle.read(tmp_path / name)) == []
    card = (tmp_path / "b/CARD.md").read_text()
    assert "contradicts the port from these levels" in card and "| port | 100.0% | 100.0% | 1.000 |" in card
    # The model is never shown a port of the table, so that it has learned what to do without one.
    _, context, _ = bundle.read(tmp_path / "b").goldens()
    assert set(context[:61, 1]) == {0.0}
    code, out, _ = fenxi_train("compare", tmp_path / "b", "--labels", table, "--coverage-by", "capture")
    assert code == 0 and "| flows c0 | 21 | 1.000 | 1.000 | 1.000 | 1.000 | 0.000 |" in out


def test_odd_ports_teach_lengths(fenxi_train, tmp_path):
    content = rows(120)
    odd = [{**r, "dport": 40_000 + i % 7} for i, r in enumerate(rows(200, seed=3))]
    tables = [save(tmp_path / "t.csv", content), save(tmp_path / "odd.csv", odd)]
    code, _, err = fenxi_train("fit", tables[0], "--out", tmp_path / "b", *FIRST, *FAST, "--steps", "300", "--odd-ports", tables[1])
    assert code == 0, err
    assert {p["port"] for p in bundle.read(tmp_path / "b").manifest["ports"]} == {443, 53, 25}
    judged = save(tmp_path / "judged.csv", [{**r, "dport": 31_000} for r in rows(60, seed=5)])
    _, out, _ = fenxi_train("compare", tmp_path / "b", "--labels", judged)
    accuracy = float(next(line for line in out.splitlines() if line.startswith("| 3 |")).split("|")[3])
    assert accuracy > 0.9


def test_options_that_do_not_fit_are_refused(fenxi_train, table, tmp_path):
    for options, word in (((*FIRST, "--hosts"), "--hosts"), ((*FIRST, "--no-ports"), "--no-ports"), (("--odd-ports", table, "--model", "forest"), "--odd-ports")):
        code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *options, *FAST)
        assert code == 64 and word in err
