"""Writes CARD.md of the bundle from the scores and the manifest."""

import argparse
import json
import pathlib

import numpy as np
import onnxruntime

import dataset
import export
import train

TEXT = """\
# {name} {version}

A demonstration of protocol recognition: a small 1D-CNN reads the signed lengths of a flow's first
{k} packets and names the flow's protocol. It exists so that fenxi has a real model to run, test
and measure. It does not know applications, and its scores are not good enough to act upon.

* Input `series`: float32 `[N, 1, {k}]`, IP lengths in bytes, positive in the direction of the first
  packet, negative against it, padded with 0. Normalisation is inside the graph.
* Output `probabilities`: float32 `[N, {classes}]`, softmax over the labels of `model.toml`.
* {weights} weights, fp32, ONNX opset {opset} (ONNX Runtime 1.17 or later).
* No threshold: `min_confidence` is 0. The probabilities are not calibrated.

## Data

{flows} TCP and UDP flows with at least {k} packets from {captures} test captures of
[nDPI](https://github.com/ntop/nDPI) (`tests/cfgs/*/pcap`, LGPL-3.0). The labels are nDPI 4.11's, taken
from the result files next to the captures (same licence); only flows that nDPI named by their bytes
(confidence "dpi") are used. A class is a protocol, the first part of nDPI's label, with at least
{min_flows} such flows; all others are `other`.

| label | taxonomy | flows | captures | F1, split by captures | F1, split by flows |
|---|---|---|---|---|---|
{label_rows}

## Scores

Accuracy / macro-F1, five folds, pooled. Baselines: always the commonest class; the commonest class
by (IP protocol, lower port); a random forest of 300 trees on the same {k} lengths. The network
is given as mean and range over {seeds} seeds (F1 by label: mean).

| split by | commonest | port table | random forest | this network |
|---|---|---|---|---|
{score_rows}

The row to read is the first. There whole captures are held out, and captures that share a
5-tuple stay together. Split by random flows, flows of the same capture stand on both sides, and
much of the result is knowing the capture again; it says nothing about other traffic.

The scores are of models trained on four fifths of the data. The shipped weights were then
trained in the same way, with seed {seed}, on all flows; for them no held-out score exists. Dropout
and weight decay were chosen among a few values by looking at scores on both splits, which are
therefore slightly too kind.

## Limits

* The captures were collected one or two per protocol to test a dissector. They are old and new,
  from many networks, and resemble no network's mix.
* {single} come from a single capture:
  split by captures they can only score 0, and what the shipped model knows of them is that capture.
* Split by captures, a mere table of ports is right {port_accuracy:.0%} of the time, the network {accuracy:.0%}
  and a random forest {forest_accuracy:.0%}.
* `other` is whatever the captures happened to hold, not "anything else".

## Determinism

With one thread and at least two rows in a batch, a row's output has the same bits whatever the
size of its batch, its place in it and the other rows. Checked with ONNX Runtime {ort} for batches
of 2 to 1024. A single row may take another kernel in the dense layers (matrix products), so
fenxi runs it together with a copy of itself. To get the same bits elsewhere, do the same. Another
processor or version may round differently, so compare `golden/outputs.csv` with a tolerance.

## Reproduction

`models/train/run.sh TABLE`, where TABLE is the labelled flow table (`train.csv.gz`); see
`models/train/README.md`. Repeated on one machine it writes the same bytes.
"""


def label_rows(flows, scores, seeds):
    """One line per class: its size, spread and F1 on both splits."""
    for number, name in enumerate(flows.names):
        rows = flows.classes == number
        f1 = [np.mean([scores[split][s]["f1"][name] for s in seeds]) for split in ("captures", "flows")]
        cells = (name, flows.taxonomy[name], rows.sum(), len(set(flows.captures[rows])))
        yield "| " + " | ".join(map(str, cells)) + f" | {f1[0]:.2f} | {f1[1]:.2f} |"


def score_rows(scores, seeds):
    """One line per split: the baselines and the network."""
    for split, methods in scores.items():
        cells = [
            "{accuracy:.3f} / {macro_f1:.3f}".format(**methods[m]) for m in ("commonest", "port table", "random forest")
        ]
        means, ranges = [], []
        for key in ("accuracy", "macro_f1"):
            values = [methods[s][key] for s in seeds]
            means.append(f"{np.mean(values):.3f}")
            ranges.append(f"{min(values):.3f}–{max(values):.3f}")
        cells.append(f"{' / '.join(means)} ({', '.join(ranges)})")
        yield "| " + " | ".join([split, *cells]) + " |"


def single_capture_classes(flows):
    """The classes whose flows all come from one capture, as a phrase."""
    spread = [len(set(flows.captures[flows.classes == c])) for c in range(len(flows.names))]
    single = [f"`{name}`" for name, captures in zip(flows.names, spread) if captures == 1]
    return " and ".join(filter(None, [", ".join(single[:-1]), single[-1]]))


def mean_accuracy(scores, methods):
    return np.mean([scores["captures"][m]["accuracy"] for m in methods])


def main():
    parser = argparse.ArgumentParser(description="write the model card")
    parser.add_argument("table", help="train.csv.gz")
    parser.add_argument("weights", help="what train.py wrote (.npz)")
    parser.add_argument("scores", help="what evaluate.py wrote (.json)")
    parser.add_argument("bundle", type=pathlib.Path, help="folder to write to")
    args = parser.parse_args()
    flows = dataset.load(args.table)
    scores = json.loads(pathlib.Path(args.scores).read_text())
    networks = [m for m in scores["captures"] if m.startswith("network")]
    text = TEXT.format(
        name=export.NAME,
        version=export.VERSION,
        k=flows.input.k,
        classes=len(flows.names),
        weights=f"{sum(w.size for w in np.load(args.weights).values()):,}",
        opset=export.OPSET,
        flows=len(flows.series),
        captures=len(set(flows.captures)),
        min_flows=dataset.MIN_FLOWS,
        label_rows="\n".join(label_rows(flows, scores, networks)),
        score_rows="\n".join(score_rows(scores, networks)),
        seeds=len(networks),
        seed=train.SEED,
        single=single_capture_classes(flows),
        port_accuracy=mean_accuracy(scores, ["port table"]),
        forest_accuracy=mean_accuracy(scores, ["random forest"]),
        accuracy=mean_accuracy(scores, networks),
        ort=onnxruntime.__version__,
    )
    (args.bundle / "CARD.md").write_text(text)


if __name__ == "__main__":
    main()
