"""Writes CARD.md of the int8 bundle: what its rounding costs, by the scores and beside the fp32 bundle."""

import argparse
import json
import pathlib

import numpy as np
import onnxruntime

import dataset
import export
import quantize
import runtime

TEXT = """\
# {name} {version}

The model [app-id-k10](../app-id-k10/CARD.md) {version} in 8 bits: the same network, trained once, with the
same input, output and labels in the same order. That card says what it can and cannot do.

* Static QDQ: u8 activations, one scale per tensor; s8 weights of 7 bits, one scale per tensor, so that
  no processor's kernels saturate. The coding of lengths and the softmax are fp32.
* Scales are the ranges that the tensors take over the {flows} training flows.
* ONNX opset {opset}. The golden outputs are this model's own, not those of the fp32 model.

## Loss

Accuracy / macro-F1, five folds, pooled, mean over {seeds} seeds: each fold's network in both forms, the
int8 form calibrated on that fold's training flows. "Same class" is the share of held-out flows that
both forms put into the same class.

| split by | fp32 | int8 | same class |
|---|---|---|---|
{score_rows}

The shipped weights have no held-out score (see the fp32 card). On all {flows} flows, which they were
trained on, the two bundles name the same class for {same} of them; accuracy is {int8:.4f} against {fp32:.4f},
probabilities differ by {mean:.4f} on average and {most:.3f} at most. `fenxi model check` takes the same
comparison on any series:

    fenxi model check models/{name} --against models/{source} --series TABLE

## Determinism

With one thread a row's output has the same bits whatever the size of its batch, its place in it and
the other rows; checked with ONNX Runtime {ort} for batches of 1 to 1024. Other providers round in
other places: their probabilities may differ from the golden ones by some hundredths.

## Reproduction

`models/train/run.sh TABLE`; see `models/train/README.md`.
"""


def score_rows(scores):
    """One line per split: means over the seeds."""
    for split, methods in scores.items():
        forms = {form: [s for m, s in methods.items() if m.startswith(form)] for form in ("network", "int8")}
        cells = [
            " / ".join(f"{np.mean([s[key] for s in form]):.3f}" for key in ("accuracy", "macro_f1"))
            for form in forms.values()
        ]
        same = np.mean([s["agreement"] for s in forms["int8"]])
        yield "| " + " | ".join([split, *cells, f"{100 * same:.2f} %"]) + " |"


def main():
    parser = argparse.ArgumentParser(description="write the int8 model card")
    parser.add_argument("table", help="train.csv.gz")
    parser.add_argument("scores", help="what evaluate.py wrote (.json)")
    parser.add_argument("source", type=pathlib.Path, help="bundle of the fp32 model")
    parser.add_argument("bundle", type=pathlib.Path, help="folder to write to")
    args = parser.parse_args()
    flows = dataset.load(args.table)
    scores = json.loads(pathlib.Path(args.scores).read_text())
    fp32, int8 = (
        runtime.run(runtime.session(folder / "model.onnx"), flows.series)
        for folder in (args.source, args.bundle)
    )
    text = TEXT.format(
        name=quantize.NAME,
        version=export.VERSION,
        source=export.NAME,
        flows=len(flows.series),
        opset=export.OPSET,
        seeds=sum(m.startswith("int8") for m in scores["captures"]),
        score_rows="\n".join(score_rows(scores)),
        same=np.sum(fp32.argmax(axis=1) == int8.argmax(axis=1)),
        fp32=np.mean(fp32.argmax(axis=1) == flows.classes),
        int8=np.mean(int8.argmax(axis=1) == flows.classes),
        mean=np.abs(fp32 - int8).mean(),
        most=np.abs(fp32 - int8).max(),
        ort=onnxruntime.__version__,
    )
    (args.bundle / "CARD.md").write_text(text)


if __name__ == "__main__":
    main()
