#!/usr/bin/env python3
"""Recomputes the labels of flow records with ONNX Runtime and compares.

usage: check_labels.py BUNDLE RECORDS.jsonl [--one-by-one]

RECORDS is what `fenxi replay --series --flows` writes: JSON Lines, of which the objects with
"type": "flow" are read, by the fields of their series that hold the bundle's features ("series" for
signed lengths), "label" and "confidence".  Every flow with a label and exactly k elements is compared: the label must be the class the model finds most
probable, or "unknown" below the bundle's min_confidence, and the confidence, where the record has
one, must agree to within CONFIDENCE_TOLERANCE.  Exit status: 0 all agree, 1 a difference or
nothing to compare, 64 usage.  Needs Python >= 3.11, numpy and onnxruntime.
"""

import argparse
import json
import pathlib
import sys
import tomllib

import numpy as np
import onnxruntime

UNKNOWN = "unknown"
CONFIDENCE_TOLERANCE = 1e-4  # records may round; the label word holds 16 bits
LISTED_DIFFERENCES = 20
FIELDS = {
    "signed_length": "series",
    "payload_length": "series_payload",
    "inter_arrival_us": "series_inter_arrival_us",
    "tcp_flags": "series_tcp_flags",
}


def load_records(path, manifest):
    """Flow records with a label and exactly k elements, as (line number, record, series [features, k])."""
    fields = [FIELDS[name] for name in manifest["features"]]
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            record = json.loads(line) if line.strip() else {}
            if record.get("type") != "flow" or record.get("label") is None:
                continue
            series = [record.get(field) or [] for field in fields]
            if all(len(channel) == manifest["k"] for channel in series):
                yield number, record, series


def probabilities(bundle, manifest, series, one_by_one):
    """The model's output [flows, classes] for the series [flows, features, k]."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    model = bundle / manifest["file"]
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    tensor = np.array(series, np.float32)
    batches = np.split(tensor, len(tensor)) if one_by_one else [tensor]
    return np.concatenate([run(session, manifest, batch) for batch in batches])


def run(session, manifest, batch):
    """One inference; a single flow beside its copy, for alone it may be rounded otherwise (as fenxi does)."""
    padded = np.repeat(batch, 2, axis=0) if len(batch) == 1 else batch
    names = manifest["input"]["name"], manifest["output"]["name"]
    return session.run([names[1]], {names[0]: padded})[0][: len(batch)]


def difference(record, row, manifest):
    """What is wrong with the record, or None; `row` is the model's output for its series."""
    best = int(row.argmax())
    confidence = float(row[best])
    label = manifest["labels"][best]["name"]
    if confidence < manifest["min_confidence"]:
        label = UNKNOWN
    if record["label"] != label:
        return f"label {record['label']}, expected {label} ({confidence:.6f})"
    recorded = record.get("confidence")
    if recorded is not None and abs(recorded - confidence) > CONFIDENCE_TOLERANCE:
        return f"label {label}: confidence {recorded}, expected {confidence:.6f}"
    return None


def main():
    parser = argparse.ArgumentParser(description="compare recorded labels with ONNX Runtime's")
    parser.add_argument("bundle", type=pathlib.Path, help="model folder")
    parser.add_argument("records", help="JSON Lines with flow records that carry their series")
    parser.add_argument("--one-by-one", action="store_true", help="one inference per flow, not one for all")
    try:
        args = parser.parse_args()
    except SystemExit as usage:
        return 64 if usage.code else 0
    manifest = tomllib.loads((args.bundle / "model.toml").read_text())
    found = list(load_records(args.records, manifest))
    if not found:
        print(f"{args.records}: no labelled flow with {manifest['k']} elements to compare")
        return 1
    rows = probabilities(args.bundle, manifest, [series for _, _, series in found], args.one_by_one)
    differences = [
        f"{args.records}:{number}: {wrong}"
        for (number, record, _), row in zip(found, rows)
        if (wrong := difference(record, row, manifest))
    ]
    for line in differences[:LISTED_DIFFERENCES]:
        print(line)
    print(f"compared {len(found)}, differences {len(differences)}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
