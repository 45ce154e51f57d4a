"""Small networks: they learn from a larger one, and tell few lengths apart."""

import numpy as np
import pytest
from conftest import FAST, rows, save

from fenxi_train import bundle, check, encode, network, reference


def shapes(folder):
    """Codes of lengths, and the size of each layer."""
    made = bundle.read(folder)
    assert check.problems(made) == []
    net = reference.read((folder / made.manifest["file"]).read_bytes())
    layers = [layer.weights.shape for layer in (*net.layers, net.out)]
    return len(np.unique(net.codes, axis=0)), layers


def test_rare_lengths_count_as_their_neighbours():
    values = np.array([[100, -101], [100, -101], [103, 1600], [100, 0]])
    made = encode.fewer_lengths(values, np.array([0, 1, 1, 1]), 1)
    at = lambda *lengths: made[np.array(lengths) + encode.LENGTH_TOP].tolist()
    # 100 and -101 are in two groups, and 100 is the commoner one.
    assert at(0, 1, 100, 103, 101, -101, -100) == [0, 16, 100, 99, 99, -99, -99]
    assert at(1600, 1550, -1600) == [1568, 1568, -1568]
    assert len(np.unique(made)) == 2 * (len(encode.FINE_EDGES) - 1) + 2


@pytest.mark.parametrize("nets", [1, 2])
def test_a_small_network_learns_from_larger_ones(fenxi_train, table, tmp_path, monkeypatch, nets):
    fitted, fit = [], network.fit

    def seen(encoder, *given, teacher=None, **more):
        made = fit(encoder, *given, teacher=teacher, **more)
        fitted.append((made.shape.hidden, teacher and [net.shape.hidden for net in teacher.nets]))
        return made

    monkeypatch.setattr(network, "fit", seen)
    options = "--depths", "2,3", "--hidden", "8,6", "--teacher", "16", "--own-lengths", "5"
    given = *FAST, "--nets", nets, *options
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *given)
    assert code == 0, err
    # In each of three folds and of all flows, so that no teacher has seen a held-out flow.
    assert fitted == [*[((16,), None)] * nets, ((8, 6), [(16,)] * nets)] * 4
    codes, layers = shapes(tmp_path / "b")
    assert codes <= 2 * (len(encode.FINE_EDGES) - 1) + 1 + 5
    assert [outputs for _, outputs in layers] == [8, 6, 4]


def test_few_lengths_without_a_teacher(fenxi_train, tmp_path):
    table = save(tmp_path / "t.csv", rows())
    options = "--k", "3", "--own-lengths", "3", "--features", "signed_length,payload_length"
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *FAST, *options)
    assert code == 0 and check.problems(bundle.read(tmp_path / "b")) == [], err


def test_only_a_network_has_a_teacher(fenxi_train, table, tmp_path):
    for option in ("--teacher", "--own-lengths"):
        given = "--model", "forest", option, "8"
        code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *FAST, *given)
        assert code == 64 and option in err
