"""Bad tables: one line that names file, line and cure, and a code of sysexits.h."""

import gzip
import pathlib
import resource
import subprocess
import sys

import pytest
from conftest import COLUMNS, FAST, rows, save

PACKAGE = pathlib.Path(__file__).parents[1]


def broken(**cells):
    content = rows()
    content[4] = {**content[4], **cells}
    return content


@pytest.mark.parametrize("cells, text", [
    ({"data_lengths": "12 abc 3"}, "data_lengths: 'abc' is not a whole number"),
    ({"data_lengths": "1.5 2 3"}, "data_lengths: '1.5' is not a whole number"),
    ({"data_lengths": "1_0_0 2 3"}, "data_lengths: '1_0_0' is not a whole number"),
    ({"data_lengths": "١٠٠ 2 3"}, "data_lengths: '١٠٠' is not a whole number"),
    ({"data_lengths": "9" * 5000}, "is not a whole number"),
    ({"dport": "4_43"}, "dport: '4_43' is not a whole number"),
    ({"proto": "tcp"}, "proto: 'tcp' is not a whole number"),
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


@pytest.mark.parametrize("parts, text", [
    ((b"a,b\n1,", (b"0" * 2**20, 3000), b"\n"), "line 2: a row of more than 1,048,576 characters"),  # a line of 3 GB
    ((b"a,b\n" b'1,"', (b"0" * 999 + b"\n", 10_000), b'"\n'), "line 2: a row of more than 1,048,576 characters"),
    ((b"0", (b",0" * 10**6, 10), b"\n"), "line 1: a row of more than 1,048,576 characters"),  # 10^7 columns
    ((b"a,b", (b"\n" * 10**6, 40)), "line 2: a row of more than"),
    ((b"a,b\n", (b"1,2\n" * 10**6, 40)), "line 500002: more than 500,000 flows of 2 columns"),
])
def test_a_small_file_does_not_take_all_memory(tmp_path, parts, text):
    zipped = (gzip.compress(p, 1) if isinstance(p, bytes) else gzip.compress(p[0], 1) * p[1] for p in parts)
    (tmp_path / "t.csv.gz").write_bytes(b"".join(zipped))
    command = [sys.executable, "-m", "fenxi_train", "fit", str(tmp_path / "t.csv.gz"), "--out", str(tmp_path / "b")]
    limited = lambda: resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
    done = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE, preexec_fn=limited)
    assert done.returncode == 65 and f"t.csv.gz: {text}" in done.stderr and done.stderr.count("\n") == 1, done.stderr[-2000:]


def test_bounds_of_a_table(fenxi_train, tmp_path, monkeypatch):
    from fenxi_train import table

    (tmp_path / "t.csv").write_text("a,b,c\n" + "1,2,3\n" * 10)
    fit = lambda: fenxi_train("fit", tmp_path / "t.csv", "--out", tmp_path / "b", *FAST)
    for name, limit, text in (("CELLS_LIMIT", 27, "line 11: more than 9 flows of 3 columns"), ("TABLE_LIMIT", 59, "line 10: more than 59 characters")):
        with monkeypatch.context() as patch:
            patch.setattr(table, name, limit)
            code, _, err = fit()
            assert code == 65 and text in err and err.count("\n") == 1
    assert "no column" in fit()[2]  # within the default bounds


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
