"""Forests: the ONNX form gives the same answers, in every batch, and every kind of input works."""

import numpy as np
import pytest
from conftest import FAST, rows, save

from fenxi_train import bundle, check, data, forest, forestgraph, inputs, runtime
from fenxi_train.network import softmax

FOREST = ("--model", "forest", "--trees", "5", "--folds", "3", "--min-flows", "5")
CASES = [
    ("--unit", "data", "--depths", "2,3,5", "--context", "protocol,server_port"),
    ("--unit", "data", "--k", "3", "--outlier", "none"),
    ("--unit", "data", "--depths", "2,5", "--features", "payload_length,inter_arrival_us", "--context", "protocol"),
    ("--unit", "packet", "--k", "5", "--features", "inter_arrival_us", "--model", "extra-trees"),
]


@pytest.mark.parametrize("options", CASES)
def test_every_kind_of_input_gives_a_sound_bundle(fenxi_train, table, tmp_path, options):
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *FOREST, *options)
    assert code == 0, err
    made = bundle.read(tmp_path / "b")
    assert check.problems(made) == []
    assert "5 trees with" in (tmp_path / "b/CARD.md").read_text()


def test_the_graph_computes_what_scikit_learn_computes(table):
    from sklearn.ensemble import RandomForestClassifier

    flows = data.load([table], inputs.Input("data", (2, 5), context=("server_port",)), min_flows=5, outlier=None)
    made = forest.fit(flows, forest.Size(trees=7, leaf=1))
    series, context, of = forest.at_all_depths(flows.input, flows.series, flows.context, flows.counts)
    own = RandomForestClassifier(7, max_features=0.5, random_state=1).fit(forest.numbers(series, context), flows.classes[of])
    wanted = own.predict_proba(forest.numbers(series, context))
    shares = made.steps(series, context) / (7 * forest.LEAF_STEPS)
    assert np.abs(shares - wanted).max() < 1 / forest.LEAF_STEPS
    session = runtime.session(forestgraph.model(made, np.full(6, 1.5), "m"))
    assert np.allclose(runtime.run_all(session, series, context), softmax(made.scores(series, context) / 1.5), atol=1e-6)


def test_thresholds_decide_as_the_float64_ones():
    """A float32 threshold that was rounded up would send the next number the other way."""
    class Tree:
        children_left, children_right = np.array([1, -1, -1]), np.array([2, -1, -1])
        feature, threshold, node_count = np.array([0, -2, -2]), np.array([0.1 - 1e-9, -2, -2]), 3
        value = np.array([[[0.5, 0.5]], [[1.0, 0.0]], [[0.0, 1.0]]])

    made = forest.of_scikit(Tree, np.array([0, 1]), 2)
    row = np.array([[np.float32(0.1)]], np.float32)
    assert (float(row[0, 0]) <= Tree.threshold[0]) == (made.leaves(row)[0] == 1)


def test_the_same_command_writes_the_same_model(fenxi_train, table, tmp_path):
    for name in "ab":
        assert fenxi_train("fit", table, "--out", tmp_path / name, "--name", "m", *CASES[0], *FOREST)[0] == 0
    assert (tmp_path / "a/model.onnx").read_bytes() == (tmp_path / "b/model.onnx").read_bytes()


@pytest.mark.parametrize("kind", [FOREST, FAST])
def test_foreign_flows_become_unknown(fenxi_train, table, tmp_path, kind):
    far = [{**r, "data_lengths": "77 -88 99", "label": "", "dport": 9} for r in rows(30, seed=3)]
    foreign = save(tmp_path / "far.csv", far)
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3", "--foreign", foreign, *kind, "--steps", "300")
    assert code == 0, err
    series = np.array([[[77, -88, 99]]] * 2, np.float32)
    made = bundle.read(tmp_path / "b")
    assert made.labels[runtime.run(made.session(), series, np.zeros((2, 0), np.float32))[0].argmax()] == "unknown"


def test_labels_of_one_platform_are_left_out_together(fenxi_train, table, tmp_path):
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *CASES[0], *FOREST, "--leave-labels-out", "--platform", "web,mail")
    assert code == 0 and "without web and mail: web" in err
    assert "platforms left out as a whole: web, mail." in (tmp_path / "b/CARD.md").read_text()


def test_refusals_of_forest_options(fenxi_train, table, tmp_path):
    for options, text in (
        (("--platform", "web,none"), "--platform none: no such label"),
        (("--foreign", table, "--outlier", "none"), "--foreign: there is no outlier class"),
    ):
        code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3", *FOREST, *options)
        assert code == 64 and text in err, err


def test_a_network_in_8_bits_beside_the_other(fenxi_train, table, tmp_path):
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--int8", tmp_path / "b8", *CASES[0], *FAST)
    assert code == 0, err
    made = bundle.read(tmp_path / "b8")
    assert check.problems(made) == [] and made.manifest["precision"] == "int8" and made.manifest["name"] == "b-int8"
    plain = bundle.read(tmp_path / "b")
    assert made.manifest["labels"] == plain.manifest["labels"] and made.manifest["sha256"] != plain.manifest["sha256"]
    for folder in ("b", "b8"):
        assert "| depth | flows | fp32 | int8 | same class |" in (tmp_path / folder / "CARD.md").read_text()


def test_a_forest_has_no_8_bit_form(fenxi_train, table, tmp_path):
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--int8", tmp_path / "b8", "--k", "3", *FOREST)
    assert code == 64 and "a forest has no 8-bit form" in err


def test_further_scores_of_a_card(fenxi_train, tmp_path):
    tables = [save(tmp_path / f"{n}.csv", rows(seed=i)) for i, n in enumerate("xy")]
    code, _, err = fenxi_train("fit", *tables, "--out", tmp_path / "b", *CASES[0], *FOREST, "--split-by", "source",
                               "--also-split-by", "capture", "--score-as", "web,mail", "--limits", "Not for cars.")
    assert code == 0, err
    card = (tmp_path / "b/CARD.md").read_text()
    for text in ("By source at depth 3", "## Held out by capture", "taken as one: web, mail.", "Not for cars.\n\n## Reproduction", "## The name a flow ends with"):
        assert text in card
    code, _, err = fenxi_train("fit", *tables, "--out", tmp_path / "c", "--k", "3", *FOREST, "--score-as", "none")
    assert code == 64 and "--score-as none: no such label" in err
