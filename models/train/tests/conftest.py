"""Small made-up tables: three applications with their own message lengths and ports."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import csv
import random

import pytest

COLUMNS = ["capture", "flow", "proto", "src", "sport", "dst", "dport", "first_us", "flags", "lengths", "payloads",
           "offsets_us", "data_lengths", "data_payloads", "data_offsets_us", "label", "category"]
SHAPES = {
    "web": (6, 443, [569, -1500, 132, -300, 200]),
    "names": (17, 53, [70, -150, 70, -180, 72]),
    "mail": (6, 25, [-100, 60, -130, 80, -60]),
}


def row(rng, number, label, capture):
    proto, port, base = SHAPES[label]
    series = [v + rng.choice([0, 0, 0, 1, -1]) for v in base]
    headers = 40 if proto == 6 else 28
    return {
        "capture": capture, "flow": number, "proto": proto, "src": f"10.0.0.{number % 9 + 1}", "sport": 40000 + number,
        "dst": "192.0.2.1", "dport": port, "first_us": 1_700_000_000_000_000 + 40_000_000_000 * int(capture[1:]),
        "flags": "2 18 16 24 24" if proto == 6 else "", "lengths": " ".join(map(str, series)),
        "payloads": " ".join(str(max(abs(v) - headers, 0)) for v in series),
        "offsets_us": "0 100 300 700 900", "data_lengths": " ".join(map(str, series)),
        "data_payloads": " ".join(str(abs(v) - headers) for v in series), "data_offsets_us": "0 100 300 700 900",
        "label": label, "category": "web" if label == "web" else "infra",
    }


def rows(count=60, captures=6, labels=tuple(SHAPES), seed=1):
    rng = random.Random(seed)
    return [row(rng, i, labels[i % len(labels)], f"c{i // len(labels) % captures}") for i in range(count)]


def save(path, content, columns=COLUMNS):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(content)
    return str(path)


@pytest.fixture
def table(tmp_path):
    return save(tmp_path / "flows.csv", rows())


@pytest.fixture
def fenxi_train(capsys):
    """Runs a command in this process; gives code, stdout and stderr."""
    from fenxi_train import cli

    def run(*arguments):
        capsys.readouterr()
        try:
            code = cli.main([str(a) for a in arguments])
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


FAST = ("--steps", "60", "--nets", "1", "--folds", "3", "--hidden", "16", "--min-flows", "5")
