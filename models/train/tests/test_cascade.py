"""cascade: cost and accuracy of a large model that runs only where a cheap one is unsure."""

import json
import xml.etree.ElementTree

import numpy as np
import pytest
from conftest import FAST, rows, save

from fenxi_train import cascade, heldout

COSTS = cascade.Costs(0.1)


def told(made, levels):
    """The text and the confidence of least time."""
    found = cascade.figures(made, ("cheap", "large"), levels, COSTS)
    return cascade.report(made, ("cheap", "large"), found), found["best"]


def answers(folds=None):
    """Ten flows of two classes: the first is right and sure of six, wrong and unsure of three, wrong and sure of one; the second is
    wrong about one that the first knows."""
    truth = np.array([0, 1] * 5)
    sure = np.array([0.95] * 6 + [0.6] * 3 + [0.99])
    right = np.array([True] * 6 + [False] * 4)
    first = np.where((np.arange(2) == truth[:, None]) == right[:, None], sure[:, None], 1 - sure[:, None])
    second = np.where(np.arange(2) == truth[:, None], 0.9, 0.1)
    second[0] = second[0, ::-1]
    return cascade.Answers(truth, first, second, folds)


def test_the_second_runs_below_the_confidence_only():
    made = answers()
    assert [int(made.asked(level).sum()) for level in (0, 0.6, 0.61, 0.95, 0.96, 1)] == [0, 0, 3, 3, 9, 10]
    found = [cascade.step(made, level, COSTS) for level in (0, 0.7, 1)]
    assert [round(s.accuracy, 3) for s in found] == [0.6, 0.9, 0.9]
    assert [round(s.time, 3) for s in found] == [0.1, 0.4, 1.1]


def test_the_least_time_without_loss_is_marked():
    assert cascade.step(answers(), 0.7, cascade.Costs(0.1, {0.7: 2.0})).time == pytest.approx(0.7)
    text, best = told(answers(), cascade.LEVELS)
    assert best["level"] == 0.7 and round(best["time"], 3) == 0.4
    assert "2.5 times less device time: it runs on 30.0% of flows" in text
    assert "1 are correct only with the cascade, and 1 only with large alone" in text
    assert '    when = "cheap.confidence < 0.7"' in text
    assert sum("least time" in line for line in text.splitlines()) == 1


def test_no_confidence_may_do():
    made = answers()
    made.second = np.where(np.arange(2) == made.truth[:, None], 0.9, 0.1)
    text, best = told(made, (0.0, 0.7, 1.0))
    assert best is None and "run large alone" in text and "when =" not in text
    made.first = made.second
    text, best = told(made, (0.0, 0.7, 1.0))
    assert best["level"] == 0 and "large is not worth its time" in text and "when =" not in text


def test_the_cheapest_model_alone_that_is_as_accurate_is_named():
    made = answers()
    made.others = (made.first, made.second)
    costs = cascade.Costs(0.1, others=(0.05, 0.2))
    names = ("cheap", "large", "small", "middle")
    text = cascade.report(made, names, cascade.figures(made, names, cascade.LEVELS, costs))
    assert "as accurate is middle (0.9000, 0 flows won and 0 lost, device time 0.200): the cascade takes 2.0 times more" in text
    assert "within chance is small (0.6000, 1 flows won and 4 lost, device time 0.050)" in text
    assert "| small alone |" in text
    assert not cascade.Single("a", 0.5, 0.5, 0.1, 1, 10).is_alike


def test_a_confidence_is_scored_on_folds_it_was_not_chosen_on():
    folds = np.array([0, 0, 0, 1, 1, 1, 0, 0, 1, 1])
    accuracy, time, used = cascade.chosen_elsewhere(answers(folds), (0.0, 0.7, 1.0), COSTS)
    # On fold 0 alone a confidence of 0.7 is as good as the second; fold 1 alone needs the second always.
    assert used == [1.0, 0.7]
    assert round(accuracy, 3) == 0.8 and round(time, 3) == round((5 * 1.1 + 5 * 0.1 + 1) / 10, 3)


@pytest.fixture
def pair(fenxi_train, table, tmp_path):
    """A small bundle and one that reads more, with their predictions for held-out flows."""
    for name, options in (("cheap", ("--depths", "2,3")), ("large", ("--depths", "3,5", "--features", "signed_length,payload_length", "--hidden", "64"))):
        code, _, err = fenxi_train("fit", table, "--out", tmp_path / name, *FAST, *options, "--held-out", tmp_path / f"{name}.npz")
        assert code == 0, err
    return tmp_path / "cheap", tmp_path / "large"


def test_the_command_prints_and_plots(fenxi_train, pair, tmp_path):
    other = save(tmp_path / "o.csv", rows(seed=7))
    for i, source in enumerate((("--labels", other), ("--held-out", tmp_path / "cheap.npz", tmp_path / "large.npz"))):
        code, out, err = fenxi_train("cascade", *pair, *source, "--second-depth", "3", "--confidence", "0,0.5,1", "--out", tmp_path / f"{i}.svg")
        assert code == 0, err
        assert "cheap after 3, large after 3 elements. 60 flows" in out and "| always | 100.0% |" in out
        assert xml.etree.ElementTree.parse(tmp_path / f"{i}.svg").getroot().tag.endswith("svg")
    code, _, err = fenxi_train("cascade", *pair, "--labels", other, "--out", tmp_path / "0.svg")
    assert code == 73 and "exists already" in err


def test_other_models_alone_are_in_the_table_and_in_the_file(fenxi_train, pair, tmp_path):
    kept = tmp_path / "cheap.npz", tmp_path / "large.npz", tmp_path / "cheap.npz"
    code, out, err = fenxi_train("cascade", *pair, "--beside", pair[0], "--held-out", *kept, "--second-depth", "3", "--json", tmp_path / "f.json")
    assert code == 0, err
    found = json.loads((tmp_path / "f.json").read_text())
    assert [s["name"] for s in found["single"]] == ["cheap", "large", "cheap"]
    assert found["single"][0]["accuracy"] == found["single"][2]["accuracy"] and found["elsewhere"]["levels"]
    code, _, err = fenxi_train("cascade", *pair, "--beside", pair[0], "--held-out", *kept[:2], "--second-depth", "3")
    assert code == 64 and "2 files for 3 bundles" in err


def test_what_does_not_fit_is_refused_in_one_line(fenxi_train, pair, table, tmp_path):
    fewer = save(tmp_path / "two.csv", rows(labels=("web", "mail")))
    fenxi_train("fit", fewer, "--out", tmp_path / "other", "--k", "3", *FAST, "--held-out", tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("no arrays")
    short = save(tmp_path / "short.csv", [{**r, "data_lengths": "70", "data_payloads": "30"} for r in rows()])
    lacking = save(tmp_path / "lacking.csv", rows(), ["capture", "flow", "proto", "dport", "flags", "data_lengths", "label"])
    kept, large = tmp_path / "cheap.npz", tmp_path / "large.npz"
    cases = [
        ((pair[0], tmp_path / "other", "--labels", table), 65, "other/model.toml: labels differ from"),
        ((*pair, "--labels", short), 65, "no flow has 3 elements for the first and 5 for the second"),
        ((*pair, "--labels", lacking), 65, "no column data_payloads"),
        ((*pair, "--labels", table, "--second-depth", "4"), 64, "has depths 3, 5"),
        ((*pair, "--held-out", kept, tmp_path / "none.npz"), 66, "no such file"),
        ((*pair, "--held-out", kept, tmp_path / "text.npz"), 65, "not readable"),
        ((*pair, "--held-out", tmp_path / "other.npz", large), 65, "labels differ from"),
        ((*pair, "--held-out", large, kept), 65, "no depth_5"),
        ((pair[0], tmp_path / "none", "--labels", table), 66, "model.toml is missing"),
        ((*pair,), 64, "--labels --held-out"),
    ]
    for arguments, wanted, words in cases:
        code, out, err = fenxi_train("cascade", *arguments)
        assert (code, out) == (wanted, "") and words in err and len(err.splitlines()) == 1, (arguments, code, err)


def test_held_out_answers_of_other_flows_are_refused(fenxi_train, pair, tmp_path):
    elsewhere = save(tmp_path / "elsewhere.csv", rows(seed=9, captures=4))
    fenxi_train("fit", elsewhere, "--out", tmp_path / "third", "--k", "3", *FAST, "--held-out", tmp_path / "third.npz")
    code, _, err = fenxi_train("cascade", pair[0], tmp_path / "third", "--held-out", tmp_path / "cheap.npz", tmp_path / "third.npz")
    assert code == 65 and "other flows than in" in err


def test_no_held_out_file_is_overwritten(fenxi_train, table, tmp_path):
    (tmp_path / "h.npz").write_text("mine")
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *FAST, "--held-out", tmp_path / "h.npz")
    assert code == 73 and "exists already" in err and not (tmp_path / "b").exists()
    assert heldout.new_file(None, "--out") is None
