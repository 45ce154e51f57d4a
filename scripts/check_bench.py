#!/usr/bin/env python3
"""Compares the scores of `fenxi model bench --json` with those of models/train on the same bundle and table.

    fenxi model bench DIR --labels TABLE --column COLUMN --json | check_bench.py DIR TABLE COLUMN

Needs numpy and onnxruntime (target/venv). Prints how many depths and whether the names agree; exits 1 at the first figure that does not.
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "models/train"))

import numpy as np  # noqa: E402
from fenxi_train import baselines, bundle, calibrate, data, groups, metrics, ports, runtime  # noqa: E402

TOLERANCE = 1e-6  # Python takes means in float32


def plain(truth, guess, count):
    f1 = [row[2] for row in metrics.f1_by_class(truth, guess, count) if row[3]]
    return float(np.mean(truth == guess)), float(np.mean(f1))


def expected(made, flows, places, depth, level):
    """The figures of a depth by their names."""
    long = ~flows.midstream & (flows.counts >= depth)
    truth = flows.classes[long]
    p = runtime.run_all(made.session(), made.input.cut(flows.series, depth), flows.seen_context())[long]
    score = metrics.score(truth, p)
    sure = metrics.decided(p.argmax(axis=1) == truth, p.max(axis=1), level)
    figures = {
        "flows": score["flows"], "accuracy": score["accuracy"], "macro_f1": score["macro_f1"], "ece": score["ece"],
        "decided": score["decided"], "decided right": score["decided_right"], "sure": sure[0], "sure right": sure[1],
    }
    for name in ("constant", "port table", "prefix table"):
        guess = baselines.folded(flows, places, baselines.ALL[name], depth)[long]
        figures[name], figures[f"{name} F1"] = plain(truth, guess, len(flows.names))
    return figures


def found(depth):
    figures = {name: depth[name] for name in ("flows", "accuracy", "macro_f1", "ece")}
    for name in ("decided", "sure"):
        figures[name], figures[f"{name} right"] = depth[name]["share"], depth[name]["right"]
    for name in ("constant", "port table", "prefix table"):
        own = depth["baselines"][name.replace(" ", "_")]
        figures[name], figures[f"{name} F1"] = own["accuracy"], own["macro_f1"]
    return figures


def names(made, flows):
    """Shares of flows that get a name by the walk, and of these that are right."""
    by_port = ports.guesses(flows, made.port_classes)
    found = {d: runtime.run_all(made.session(), made.input.cut(flows.series, d), flows.seen_context()) for d in made.input.depths}
    least = made.manifest["min_confidence"]
    answer, _ = calibrate.walk(flows, found, made.input.depths, made.confidences, least, by_port, made.contradiction)
    named = ~flows.midstream & (answer >= 0)
    return {"named": named.sum() / (~flows.midstream).sum(), "right": (answer == flows.classes)[named].mean()}


def main(folder, table, column):
    report = json.load(sys.stdin)
    made = bundle.read(folder)
    flows = data.of_bundle(made, [table], column)
    if made.contradiction:
        flows = ports.hidden(flows, ports.guesses(flows, made.port_classes))
    places = groups.folds(flows.groups, flows.classes, 5)
    levels = dict(zip(made.input.depths, made.confidences))
    for depth in report["depths"]:
        elements = depth["elements"]
        wanted, own = expected(made, flows, places, elements, levels[elements]), found(depth)
        for name, figure in wanted.items():
            if abs(own[name] - figure) > TOLERANCE:
                sys.exit(f"depth {elements}: {name} is {own[name]}, by Python {figure}")
    for name, share in names(made, flows).items():
        if abs(report["names"][name] - share) > TOLERANCE:
            sys.exit(f"names: {name} is {report['names'][name]}, by Python {share}")
    print(f"{len(report['depths'])} depths and the names agree")


if __name__ == "__main__":
    main(*sys.argv[1:])
