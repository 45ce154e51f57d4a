"""fit, card and compare: a bundle is whole, new, reproducible and good on an easy table."""

import tomllib

import numpy as np
import pytest
from conftest import FAST, rows, save

from fenxi_train import bundle, check

CASES = [
    ("--unit", "data", "--depths", "2,3,5", "--context", "protocol,server_port"),
    ("--unit", "data", "--k", "3"),
    ("--unit", "data", "--depths", "1,4", "--features", "signed_length,payload_length,inter_arrival_us", "--context", "server_port"),
    ("--unit", "packet", "--k", "4", "--features", "signed_length,tcp_flags,inter_arrival_us", "--context", "protocol"),
    ("--unit", "packet", "--k", "5", "--features", "inter_arrival_us", "--network", "cnn"),
    ("--unit", "data", "--depths", "2,5", "--features", "payload_length", "--network", "cnn"),
]


@pytest.mark.parametrize("options", CASES)
def test_every_kind_of_input_gives_a_sound_bundle(fenxi_train, table, tmp_path, options):
    code, out, err = fenxi_train("fit", table, "--out", tmp_path / "b", *options, *FAST)
    assert code == 0, err
    made = bundle.read(tmp_path / "b")
    assert made.labels == ["mail", "names", "web"] + ["unknown"] * made.input.has_lengths
    assert check.problems(made) == []
    series, context, outputs = made.goldens()
    assert len(series) == len(outputs) and context.shape[1] == len(made.input.context)
    assert np.allclose(outputs.sum(axis=1), 1, atol=1e-5)
    assert (tmp_path / "b/CARD.md").read_text().startswith("# b 1.0.0")


def test_keys_of_depths_context_and_ports(fenxi_train, tmp_path):
    table = save(tmp_path / "t.csv", rows(120))
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *CASES[0], *FAST, "--confidence", "0.9,0.8,0.7")
    assert code == 0, err
    found = tomllib.loads((tmp_path / "b/model.toml").read_text())
    assert (found["k"], found["depths"], found["confidence"]) == (5, [2, 3, 5], [0.9, 0.8, 0.7])
    assert found["context"] == ["protocol", "server_port"] and found["context_input"] == {"name": "context"}
    assert {(p["protocol"], p["port"], p["label"]) for p in found["ports"]} == {("tcp", 443, "web"), ("udp", 53, "names"), ("tcp", 25, "mail")}
    assert "a table of ports is as good" in err


def test_hosts_are_named_where_asked_for(fenxi_train, tmp_path):
    table = save(tmp_path / "t.csv", rows(120))
    for name, option in (("with", ["--hosts"]), ("without", [])):
        code, _, err = fenxi_train("fit", table, "--out", tmp_path / name, *CASES[0], *FAST, *option)
        assert code == 0, err
    found = bundle.read(tmp_path / "with").manifest["hosts"]
    assert (found["flows"], found["min_flows"], found["confidence"]) == (20, 1, 0.9)
    assert "shared by confusions" in (tmp_path / "with/CARD.md").read_text()
    assert "hosts" not in bundle.read(tmp_path / "without").manifest


def test_golden_rows_have_every_depth(fenxi_train, table, tmp_path):
    fenxi_train("fit", table, "--out", tmp_path / "b", *CASES[0], *FAST)
    made = bundle.read(tmp_path / "b")
    series, _, _ = made.goldens()
    assert {2, 3, 5} <= set(made.input.present(series).sum(axis=1))


def test_the_same_command_writes_the_same_model(fenxi_train, table, tmp_path):
    for name in "ab":
        assert fenxi_train("fit", table, "--out", tmp_path / name, "--name", "m", *CASES[0], *FAST)[0] == 0
    for file in ("model.onnx", "model.toml", "ranges.csv", "golden/inputs.csv", "golden/outputs.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_an_existing_folder_is_left_alone(fenxi_train, table, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/mine").write_text("x")
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *FAST)
    assert code == 73 and "exists already" in err
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["mine"]


def test_a_refused_table_leaves_no_folder(fenxi_train, tmp_path):
    table = save(tmp_path / "t.csv", rows(labels=("web",)))
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *FAST)
    assert code == 65 and "one class only" in err
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("split", ["capture", "host", "day", "source"])
def test_splits(fenxi_train, tmp_path, split):
    tables = [save(tmp_path / f"{n}.csv", rows(seed=i)) for i, n in enumerate("xy")]
    code, _, err = fenxi_train("fit", *tables, "--out", tmp_path / "b", "--k", "3", "--split-by", split, *FAST)
    assert code == 0 and f"folds by {split}" in err


def test_one_group_only_is_refused(fenxi_train, tmp_path):
    table = save(tmp_path / "t.csv", rows(captures=1))
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3", *FAST)
    assert code == 65 and "nothing can be held out" in err


def test_rare_and_foreign_labels_become_the_outlier_class(fenxi_train, tmp_path):
    content = rows()
    for i, name in enumerate(("été", "a b", "")):
        content[i] = {**content[i], "label": name}
    table = save(tmp_path / "t.csv", content)
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3", *FAST)
    assert code == 0, err
    assert bundle.read(tmp_path / "b").labels == ["mail", "names", "web", "unknown"]


def test_labels_that_are_no_class_are_told_with_reason_and_cure(fenxi_train, tmp_path):
    content = rows(240)
    for row in content:
        if row["label"] == "names":  # 80 flows, of two packets with payload each
            for column in ("data_lengths", "data_payloads", "data_offsets_us"):
                row[column] = " ".join(row[column].split()[:2])
    content += [{**r, "label": "rare"} for r in rows(3)]
    table = save(tmp_path / "t.csv", content)
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--depths", "3,5", *FAST)
    assert code == 0 and bundle.read(tmp_path / "b").labels == ["mail", "web", "unknown"]
    told = [line for line in err.splitlines() if "not a class" in line]
    assert told == [
        "fenxi-train: not a class: names: 0 of its 80 flows have 3 packets with layer-4 payload, and a class needs 5;"
        " 2 as the first depth keeps it (--depths)",
        "fenxi-train: not a class: rare: 3 of its 3 flows have 3 packets with layer-4 payload, and a class needs 5;"
        " give more of its flows, or a smaller --min-flows",
    ]
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "c", "--depths", "2,5", *FAST)
    assert code == 0 and "names" in bundle.read(tmp_path / "c").labels and "not a class: names" not in err
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "d", "--k", "3", "--classes", "web,names,typo", *FAST)
    assert code == 0 and "not a class: names: 0 of its 80" in err and "not a class: typo: 0 of its 0" in err
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "e", "--k", "3", "--min-sources", "2", *FAST)
    assert code == 65 and "not a class" not in err


def test_compare_scores_an_easy_table_and_foreign_labels(fenxi_train, table, tmp_path):
    fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3", *FAST, "--steps", "300")
    other = save(tmp_path / "o.csv", rows(seed=7) + [{**r, "label": "new"} for r in rows(6, seed=8)])
    code, out, err = fenxi_train("compare", tmp_path / "b", "--labels", other)
    assert code == 0, err
    assert "| depth |" in out and "| unknown | 6 |" in out
    accuracy = float(next(line for line in out.splitlines() if line.startswith("| 3 |")).split("|")[3])
    assert accuracy > 0.85


def test_card_checks_the_model(fenxi_train, table, tmp_path):
    fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3", *FAST)
    assert fenxi_train("card", tmp_path / "b")[0] == 0
    golden = tmp_path / "b/golden/outputs.csv"
    golden.write_text(golden.read_text().replace("0.", "0.1", 1))
    code, _, err = fenxi_train("card", tmp_path / "b")
    assert code == 65 and "golden outputs differ" in err
    assert fenxi_train("card", tmp_path / "none")[0] == 66


def test_confusions_are_shares_of_wrong_labels():
    from fenxi_train import hosts

    truth, given = np.array([0, 0, 0, 1, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 0, -1, 1, 2])
    # Class 1 is given wrongly to two flows of 0 and one of 2; one flow says nothing.
    assert hosts.confusions(truth, given) == {1: {0: 0.5}}
    row = np.exp(hosts.log_row(1, 0.8, [0, 1, 2], {0: 0.5})) - hosts.FLOOR
    assert np.allclose(row, [0.1, 0.8, 0.1])


def test_the_walk_through_the_depths_is_that_of_the_data_path():
    from types import SimpleNamespace

    from fenxi_train import calibrate

    a, b, unknown = np.eye(3)
    weak = 0.8 * a + 0.2 * b
    flows = [  # answers at two depths, elements, class by the port; class and what decided
        ((a, a), 2, 1, 0, "depth 1"),
        ((unknown, a), 2, -1, 0, "depth 2"),  # a sure unknown ends nothing
        ((unknown, unknown), 2, -1, -1, "nothing"),  # and is no name
        ((unknown, unknown), 2, 1, 1, "port"),
        ((weak, weak), 2, 1, 0, "not sure"),  # the last answer stands against a port
        ((weak, weak), 1, 1, 1, "port"),  # an earlier one does not
        ((weak, weak), 1, -1, 0, "not sure"),
        ((0.6 * a + 0.4 * b,) * 2, 2, -1, -1, "nothing"),
        ((a, a), 1, 1, 0, "depth 1"),
        ((weak, weak), 0, 1, -1, "nothing"),  # a port says nothing of a flow without an element
    ]
    answers, counts, ports, classes, kinds = zip(*flows)
    seen = SimpleNamespace(classes=np.zeros(len(flows), int), counts=np.array(counts), outlier=2)
    by_depth = {depth: np.array([answer[i] for answer in answers]) for i, depth in enumerate((1, 2))}
    found = calibrate.walk(seen, by_depth, (1, 2), [0.9, 0.9], 0.7, np.array(ports))
    assert (tuple(found[0]), tuple(found[1])) == (classes, kinds)
    # With a single depth the model's answer stands, even if it is unknown.
    found = calibrate.walk(seen, by_depth, (2,), [0.9], 0.7, np.array(ports))
    assert tuple(found[0]) == (0, 0, -1, -1, 0, 1, -1, -1, 1, -1)
    # No answer below min_confidence is sure, whatever a depth asks for.
    found = calibrate.walk(seen, by_depth, (2,), [0.5], 0.7, np.array(ports))
    assert (found[0][7], found[1][7]) == (-1, "nothing")
