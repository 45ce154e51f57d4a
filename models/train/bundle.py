"""Trains a model for any unit, K and features, and writes its bundle to a new folder, with scores in its card.

Network, training, folds and baselines are those of app-id-k10 (README.md); the dense layer may be
narrower.  A folder that is there already is left alone.
"""

import train  # first: it tells JAX how many cores to see

import argparse
import pathlib
import shlex
import sys

import numpy as np
import onnxruntime

import check_model
import dataset
import evaluate
import export
import inputs
import network

VERSION = "1.0.0"
MEANING = {
    "signed_length": "signed IP lengths",
    "payload_length": "layer-4 payload lengths",
    "inter_arrival_us": "inter-arrival times in µs",
    "tcp_flags": "TCP flags",
}
ELEMENTS = {"packet": "packets", "data": "packets with layer-4 payload"}

TEXT = """\
# {name} {version}

**A test bundle, not for use.** It exists so that fenxi's tests have a real model for this unit and these
features. It was trained on a few captures, and its scores below are not good enough to act upon.

* Reads the first {k} {elements} of a flow (`unit = "{unit}"`): {features}.
* Input `series`: float32 `[N, {channels}, {k}]`, raw numbers, a channel for each feature in this order. Scaling
  is inside the graph.
* Output `probabilities`: float32 `[N, {classes}]`, softmax over the labels of `model.toml`.
* {weights} weights, fp32, ONNX opset {opset} (ONNX Runtime 1.17 or later). `min_confidence` is 0; the
  probabilities are not calibrated.

## Data and scores

{flows} TCP and UDP flows from {captures} test captures of nDPI (LGPL-3.0), labelled by nDPI 4.11, as described
in the card of `models/app-id-k10`: flows that nDPI named by their bytes (confidence "dpi") and that have
{k} {elements}. Protocols with fewer than {min_flows} such flows are `other`.

| label | taxonomy | flows | captures |
|---|---|---|---|
{label_rows}

Accuracy / macro-F1, five folds, pooled: always the commonest class, the commonest class by (IP protocol,
lower port), a random forest of 300 trees on the same numbers, and this network with seed {seed}.

| split by | commonest | port table | random forest | this network |
|---|---|---|---|---|
{score_rows}

The row to read is the first: there whole captures are held out. Split by random flows, flows of the same
capture stand on both sides, and much of the result is knowing the capture again. The scores are of models
trained on four fifths of the data; the weights in this bundle were then trained on all flows, and no
held-out score exists for them.

## Reproduction

With the tables of labelled flows (`train.csv.gz`, `train_data.csv.gz`) and ONNX Runtime {ort}:

    {command}
"""


def scores(flows, split, dense):
    """Accuracy and macro-F1 by method."""

    def fitted(flows, rows, test):
        params = train.fit(
            flows.series[rows], flows.classes[rows], len(flows.names), input=flows.input, dense=dense
        )
        return train.predict(params, flows.series[test], flows.input)

    guesses = [
        np.full(len(flows.classes), evaluate.commonest(flows.classes)),
        *(evaluate.folded(flows, split, method) for method in (evaluate.port_table, evaluate.forest, fitted)),
    ]
    return [evaluate.score(flows, guess) for guess in guesses]


def card(args, flows, params, found):
    """The text of CARD.md."""
    rows = [flows.classes == c for c in range(len(flows.names))]
    command = ["models/train/run.sh", "--unit", args.unit, "--k", str(args.k), "--features", args.features]
    command += ["--dense", str(args.dense), "--name", args.name, "--out", "DIR"]
    return TEXT.format(
        name=args.name,
        version=VERSION,
        k=args.k,
        unit=args.unit,
        elements=ELEMENTS[args.unit],
        features=", ".join(MEANING[name] for name in flows.input.features),
        channels=len(flows.input.features),
        classes=len(flows.names),
        weights=f"{sum(w.size for w in params.values()):,}",
        opset=export.OPSET,
        flows=len(flows.series),
        captures=len(set(flows.captures)),
        min_flows=dataset.MIN_FLOWS,
        label_rows="\n".join(
            f"| {name} | {flows.taxonomy[name]} | {own.sum()} | {len(set(flows.captures[own]))} |"
            for name, own in zip(flows.names, rows)
        ),
        seed=train.SEED,
        score_rows="\n".join(
            f"| {split} | " + " | ".join(f"{s['accuracy']:.3f} / {s['macro_f1']:.3f}" for s in methods) + " |"
            for split, methods in found.items()
        ),
        ort=onnxruntime.__version__,
        command=shlex.join(command),
    )


def main():
    parser = argparse.ArgumentParser(description="train a model and write its bundle to a new folder")
    inputs.add_options(parser)
    parser.add_argument("--table", required=True, help="train.csv.gz")
    parser.add_argument("--data-table", help="train_data.csv.gz, for unit data and payload lengths")
    parser.add_argument("--dense", type=int, default=network.DENSE, help="width of the dense layer")
    parser.add_argument("--name", help="name of the model (default: the folder's)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to make")
    args = parser.parse_args()
    args.name = args.name or args.out.name
    input = inputs.of_options(parser, args)
    if args.out.exists():
        parser.error(f"{args.out} is there already; name a folder that is to be made")
    flows = dataset.load(args.table, input, args.data_table)

    found = {split: scores(flows, split, args.dense) for split in ("captures", "flows")}
    params = train.fit(flows.series, flows.classes, len(flows.names), input=input, dense=args.dense)
    made = export.model(params, len(flows.names), input, args.name).SerializeToString(deterministic=True)
    export.write_bundle(args.out, args.name, "fp32", flows, made, VERSION)
    (args.out / "CARD.md").write_text(card(args, flows, params, found))
    return check_model.check(args.out, flows)


if __name__ == "__main__":
    sys.exit(main())
