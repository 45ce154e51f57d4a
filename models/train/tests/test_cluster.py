"""series and fit give the same on two workers as in one process."""

import json
import sys

import pytest
from conftest import FAST
from test_label import RECORD

from fenxi_train import bundle

PROGRAM = """#!{python}
import json, pathlib, sys

capture = pathlib.Path(sys.argv[-1])
if capture.read_text() == "broken":
    sys.exit("broken capture")
out = sys.argv[sys.argv.index("--flows") + 1]
record = json.loads({record!r})
with open(out, "w") as file:
    for number in range(int(capture.read_text())):
        print(json.dumps(record | {{"flow_id": number}}), file=file)
"""


@pytest.fixture
def replay(tmp_path):
    """A program that finds as many flows in a capture as it says."""
    program = tmp_path / "fenxi"
    program.write_text(PROGRAM.format(python=sys.executable, record=json.dumps(RECORD)))
    program.chmod(0o755)
    captures = []
    for number in range(5):
        captures.append(tmp_path / f"c{number}.pcap")
        captures[-1].write_text(str(number + 1))
    return program, captures


def test_a_table_of_two_workers_is_the_same(fenxi_train, replay, tmp_path):
    pytest.importorskip("distributed", reason="distributed (Dask) is not installed")
    program, captures = replay
    tables = []
    for name, how in (("one", ()), ("two", ("--workers", "2"))):
        tables.append(tmp_path / f"{name}.csv")
        code, out, err = fenxi_train(
            "series", *captures, "--fenxi", program, "--out", tables[-1], *how
        )
        assert code == 0 and "15 flows of 5 files" in out, err
    assert tables[0].read_bytes() == tables[1].read_bytes()
    captures[3].write_text("broken")
    code, _, err = fenxi_train(
        "series", *captures, "--fenxi", program, "--out", tmp_path / "t.csv", "--workers", "2"
    )
    assert code == 65 and "c3.pcap: fenxi replay: broken capture" in err, err


def test_a_model_of_a_scheduler_with_two_workers_is_the_same(fenxi_train, table, tmp_path):
    distributed = pytest.importorskip("distributed", reason="distributed (Dask) is not installed")
    options = ("--k", "3", *FAST, "--name", "m")
    assert fenxi_train("fit", table, "--out", tmp_path / "one", *options)[0] == 0
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as there:
        code, _, err = fenxi_train(
            "fit",
            table,
            "--out",
            tmp_path / "two",
            *options,
            "--scheduler",
            there.scheduler_address,
        )
    assert code == 0, err
    one, two = (bundle.read(tmp_path / name).manifest for name in ("one", "two"))
    assert one == two


def test_refusals(fenxi_train, table, tmp_path, monkeypatch):
    fit = "fit", table, "--out", tmp_path / "b", "--k", "3", *FAST
    assert fenxi_train(*fit, "--workers", "-1")[0] == 64
    assert fenxi_train(*fit, "--workers", "1", "--scheduler", "tcp://127.0.0.1:1")[0] == 64
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, err = fenxi_train(*fit, "--workers", "2")
    assert code == 64 and "pip install 'fenxi-train[dask]'" in err


def test_nobody_at_the_address(fenxi_train, table, tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="distributed (Dask) is not installed")
    monkeypatch.setattr("fenxi_train.cluster.CONNECT_S", 1)
    for address in ("tcp://127.0.0.1:1", "nothing"):
        code, _, err = fenxi_train(
            "fit", table, "--out", tmp_path / "b", "--k", "3", *FAST, "--scheduler", address
        )
        assert code == 66 and f"--scheduler {address}: " in err, err
