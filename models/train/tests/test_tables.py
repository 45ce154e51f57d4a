"""Bad tables: one line that names file, line and cure, and a code of sysexits.h."""

import gzip

import pytest
from conftest import COLUMNS, FAST, rows, save


def broken(**cells):
    content = rows()
    content[4] = {**content[4], **cells}
    return content


@pytest.mark.parametrize("cells, text", [
    ({"data_lengths": "12 abc 3"}, "data_lengths: invalid literal"),
    ({"data_lengths": "1.5 2 3"}, "data_lengths: invalid literal"),
    ({"data_lengths": "100 -99999999999999999999 100"}, "is beyond 262144"),
    ({"data_lengths": "100 0 100"}, "a length of 0"),
    ({"data_lengths": "100 " * 40_000}, "characters"),
    ({"dport": "70000"}, "dport: 70000 is not within 0 to 65535"),
    ({"dport": ""}, "dport: '' is not a whole number"),
    ({"proto": "1"}, "a flow is TCP (6) or UDP (17)"),
])
def test_a_broken_cell_is_named_with_its_line(fenxi_train, tmp_path, cells, text):
    table = save(tmp_path / "t.csv", broken(**cells))
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3", "--context", "protocol,server_port", *FAST)
    assert code == 65 and "t.csv: line 6: " in err and text in err and err.count("\n") == 1


@pytest.mark.parametrize("content, text", [
    (b"", "empty"),
    (b"capture,flow\n", "no flows below"),
    (b"a,b\n1\n", "line 2: 1 cells for 2 columns"),
    (b"\x00\xff\xfe garbage", "t.csv"),
    (b"\x1f\x8bnot gzip at all", "not readable"),
    (b"capture,flow,proto,label\nc,1,6,x\n", "line 1: no column data_lengths"),
    (gzip.compress(b"a,b\n1,2\n" * 1000)[:30], "not readable"),
])
def test_a_file_that_is_no_table(fenxi_train, tmp_path, content, text):
    (tmp_path / "t.csv").write_bytes(content)
    code, _, err = fenxi_train("fit", tmp_path / "t.csv", "--out", tmp_path / "b", "--k", "3", *FAST)
    assert code == 65 and text in err and err.count("\n") == 1


def test_missing_files_and_labels(fenxi_train, tmp_path):
    assert fenxi_train("fit", tmp_path / "no.csv", "--out", tmp_path / "b")[0] == 66
    assert fenxi_train("fit", tmp_path, "--out", tmp_path / "b")[0] == 66
    table = save(tmp_path / "t.csv", rows(), [c for c in COLUMNS if c != "label"])
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3")
    assert code == 65 and "no column label" in err
    table = save(tmp_path / "u.csv", [{**r, "label": ""} for r in rows()])
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3")
    assert code == 65 and "no flow has a label" in err


@pytest.mark.parametrize("options", [
    ("--depths", "5,3"), ("--depths", "0,3"), ("--depths", "3,40"), ("--depths", "a"), ("--k", "0"), ("--k", "3", "--depths", "3"),
    ("--features", "colour"), ("--features", "signed_length,signed_length"), ("--context", "moon"),
    ("--unit", "byte"), ("--depths", "2,3", "--features", "inter_arrival_us"), ("--precision", "2"),
    ("--k", "3", "--confidence", "0.5,0.6"), ("--steps", "-1"),
])
def test_wrong_options(fenxi_train, table, tmp_path, options):
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *options)
    assert code == 64 and err.count("\n") == 1 and not (tmp_path / "b").exists()


def test_hex_flags_and_gaps_of_the_other_form(tmp_path):
    from fenxi_train import inputs, table

    columns = ["capture", "flow", "proto", "dport", "lengths", "iat_us", "flags"]
    content = [{"capture": "c", "flow": 0, "proto": 6, "dport": 80, "lengths": "60 -60 52", "iat_us": "0 7 5", "flags": "02 12 10"},
               {"capture": "c", "flow": 1, "proto": 6, "dport": 80, "lengths": "60 -60", "iat_us": "0 -3", "flags": "10 18"}]
    read = table.read_all([save(tmp_path / "t.csv", content, columns)])
    input = inputs.Input("packet", (2, 3), ("signed_length", "inter_arrival_us", "tcp_flags"), ("protocol", "server_port"))
    series, counts = table.series(read, input)
    assert series[0].tolist() == [[60, -60, 52], [0, 7, 5], [2, 18, 16]]
    assert series[1].tolist() == [[60, -60, 0], [0, 0, 0], [16, 24, 0]]
    assert counts.tolist() == [3, 2]
    assert table.context(read, input).tolist() == [[6, 80], [6, 0]]
