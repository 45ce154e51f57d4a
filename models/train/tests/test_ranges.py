"""Ranges of channels: fit writes them for networks, and the subcommand for bundles that exist."""

import numpy as np
import pytest
from conftest import FAST

from fenxi_train import bundle, ranges


@pytest.mark.parametrize("network, layers", [("dense", 1), ("cnn", 3)])
def test_fit_writes_the_ranges_of_a_network(fenxi_train, table, tmp_path, network, layers):
    options = "--k", "3", "--network", network, *FAST
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *options)
    assert code == 0, err
    made = bundle.read(tmp_path / "b")
    assert made.manifest["ranges"] == "ranges.csv"
    found = ranges.read(tmp_path / "b/ranges.csv")
    assert list(found) == ranges.layers((tmp_path / "b/model.onnx").read_bytes())
    assert len(found) == layers


def test_the_subcommand_writes_what_fit_wrote(fenxi_train, table, tmp_path):
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--depths", "2,5", *FAST)
    assert code == 0, err
    own, manifest = tmp_path / "b/ranges.csv", tmp_path / "b/model.toml"
    before, key = own.read_bytes(), 'ranges = "ranges.csv"\n'
    own.unlink()
    whole = manifest.read_text()
    manifest.write_text(whole.replace(key, ""))
    for _ in range(2):
        code, out, err = fenxi_train("ranges", tmp_path / "b", table)
        assert code == 0 and "1 layers" in out, err
        assert own.read_bytes() == before
        assert manifest.read_text().count(key) == 1
    assert sorted(p.name for p in own.parent.iterdir() if p.name.startswith(".")) == []


def test_trees_and_networks_in_8_bits_have_no_ranges(fenxi_train, table, tmp_path):
    for name, options in (("b", ("--int8", tmp_path / "i")), ("f", ("--model", "forest"))):
        given = "fit", table, "--out", tmp_path / name, "--k", "3", *options
        code, _, err = fenxi_train(*given, *FAST)
        assert code == 0, err
    for name in "if":
        assert "ranges" not in bundle.read(tmp_path / name).manifest
        code, _, err = fenxi_train("ranges", tmp_path / name, table)
        assert code == 65 and "have ranges" in err
        assert not (tmp_path / name / "ranges.csv").exists()


def test_every_channel_has_a_range_above_0():
    values = np.zeros((1000, 4), np.float32)
    values[:, 0], values[:, 1], values[0, 2] = 8, 2, 1e-9
    found = ranges.of_layer(values)
    assert found[0] == 8 and found[1] == 2 and found[2] == found[3] == np.float32(1e-2)
    assert (ranges.of_layer(np.zeros((10, 3), np.float32)) == 1).all()


@pytest.mark.parametrize("line", ["a", "a,", "a,1,x", "a,1,0", "a,1,-1", "a,inf", "a,nan"])
def test_a_file_that_is_not_well_formed_is_refused(tmp_path, line):
    path = tmp_path / "ranges.csv"
    path.write_text(f"b,1,2.5\n{line}\n")
    with pytest.raises(ranges.Refusal, match="line 2"):
        ranges.read(path)


def test_what_is_written_reads_as_it_was(tmp_path):
    found = {"a": np.array([0.1, 1e-9, 123456.79, 2], np.float32)}
    path = tmp_path / "ranges.csv"
    path.write_text(ranges.text(found))
    assert (ranges.read(path)["a"] == found["a"]).all()


def test_card_and_compare_tell_what_integers_change(fenxi_train, table, tmp_path):
    options = "--depths", "2,5", "--context", "protocol,server_port", *FAST
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *options)
    assert code == 0 and "in integers: " in err, err
    section = (tmp_path / "b/CARD.md").read_text().split("## In integers")[1]
    assert "\n| 2 |" in section and "flows end with another name" in section
    code, out, err = fenxi_train("compare", tmp_path / "b", "--labels", table)
    assert code == 0 and "flows end with another name" in out, err


def test_a_graph_without_integers_has_no_such_section(fenxi_train, table, tmp_path):
    options = "--k", "3", "--features", "signed_length,inter_arrival_us", *FAST
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *options)
    assert code == 0 and "in integers" not in err, err
    assert "In integers" not in (tmp_path / "b/CARD.md").read_text()
