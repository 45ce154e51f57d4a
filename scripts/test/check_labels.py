#!/usr/bin/env python3
"""Recomputes the labels of flow records with ONNX Runtime and compares.

usage: check_labels.py BUNDLE RECORDS.jsonl [--one-by-one]

RECORDS is what `fenxi replay --series --flows` writes: JSON Lines, of which the objects with
"type": "flow" are read, by the fields of their series that hold the bundle's features ("series" for
signed lengths). The label of each must be the one that the model's answers to its depths, and then
the bundle's ports, give it (docs/model.md), with the confidence to within CONFIDENCE_TOLERANCE.
Exit status: 0 all agree, 1 a difference or
nothing to compare, 64 usage.  Needs Python >= 3.11, numpy and onnxruntime.
"""

import argparse
import json
import os
import pathlib
import sys
import tomllib

import numpy as np

# Turns off the telemetry client of ONNX Runtime; it is read when the library is imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime  # noqa: E402

UNKNOWN = "unknown"
CONFIDENCE_TOLERANCE = 1e-4  # records may round; the label word holds 16 bits
LISTED_DIFFERENCES = 20
FIELDS = {
    "signed_length": "series",
    "payload_length": "series_payload",
    "inter_arrival_us": "series_inter_arrival_us",
    "tcp_flags": "series_tcp_flags",
}


def depths_of(manifest):
    """Elements and least sure confidence of each depth; a model without depths is always sure after k."""
    depths = manifest.get("depths", [manifest["k"]])
    return list(zip(depths, manifest.get("confidence", [0.0])))


def first_port(record, manifest):
    """Label and precision of the port that named the flow with its first packet, if the bundle's ports do so."""
    return port_label(record, manifest) if "contradiction" in manifest else None


def load_records(path, manifest):
    """Flow records that have reached a depth or have a label, as (line number, record, series [features, elements])."""
    fields = [FIELDS[name] for name in manifest["features"]]
    least = depths_of(manifest)[0][0]
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            record = json.loads(line) if line.strip() else {}
            if record.get("type") != "flow" or (record.get("midstream") and not manifest.get("midstream")):
                continue
            series = [record.get(field) or [] for field in fields]
            if len(series[0]) >= least or record.get("label") is not None:
                yield number, record, series


def context_of(record, manifest):
    """The numbers of the second input."""
    is_hidden = record.get("midstream") or first_port(record, manifest)
    numbers = {"protocol": record["proto"], "server_port": 0 if is_hidden else record["dst_port"]}
    return [numbers[name] for name in manifest.get("context", [])]


def rows_of(found, manifest):
    """All rows that the model is asked, [rows, features, k] and [rows, context]; and whose they are, by record and depth."""
    series, context, whose = [], [], {}
    for number, record, channels in found:
        for depth, _ in depths_of(manifest):
            if len(channels[0]) < depth:
                break
            whose[number, depth] = len(series)
            series.append([channel[:depth] + [0] * (manifest["k"] - depth) for channel in channels])
            context.append(context_of(record, manifest))
    return np.array(series, np.float32), np.array(context, np.float32), whose


def probabilities(bundle, manifest, series, context, one_by_one):
    """The model's output [rows, classes]."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    model = bundle / manifest["file"]
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    parts = len(series) if one_by_one else 1
    batches = zip(np.array_split(series, parts), np.array_split(context, parts))
    return np.concatenate([run(session, manifest, *batch) for batch in batches])


def run(session, manifest, series, context):
    """One inference; a single row beside its copy, for alone it may be rounded otherwise (as fenxi does)."""
    rows = len(series)
    if rows == 1:
        series, context = np.repeat(series, 2, axis=0), np.repeat(context, 2, axis=0)
    inputs = {manifest["input"]["name"]: series}
    if "context_input" in manifest:
        inputs[manifest["context_input"]["name"]] = context
    return session.run([manifest["output"]["name"]], inputs)[0][:rows]


def port_label(record, manifest):
    """Label and precision that the bundle gives the server's port, if it does, of a flow that began in sight."""
    protocol = {6: "tcp", 17: "udp"}[record["proto"]]
    for port in manifest.get("ports", []):
        if (port["protocol"], port["port"]) == (protocol, record["dst_port"]) and not record.get("midstream"):
            return port["label"], port["precision"]
    return None


def expected(record, answers, elements, manifest):
    """(label, confidence, decided_by, depth) of a flow by the model's answers to the depths that it reached."""
    depths = depths_of(manifest)
    first = first_port(record, manifest)
    best = None
    for number, ((depth, sure), row) in enumerate(zip(depths, answers)):
        top = int(row.argmax())
        confidence = float(row[top])
        label = manifest["labels"][top]["name"]
        if confidence < manifest["min_confidence"]:
            label = UNKNOWN
        best = label, confidence, "model", depth
        if first:
            least = manifest["contradiction"][number]
            if least < 1 and label != first[0] and round(confidence * 65535) >= round(least * 65535):
                return best
        elif label != UNKNOWN and round(confidence * 65535) >= round(sure * 65535):
            return best
    if "contradiction" in manifest:
        return (*first, "port", 0) if first else best
    port = port_label(record, manifest) if elements else None
    # The last depth decides, unless it finds the flow unknown.
    is_decided = len(answers) == len(depths) and best[0] != UNKNOWN
    if port and not is_decided:
        return *port, "port", None
    return best


def difference(record, answers, elements, manifest):
    """What is wrong with the record, or None; `answers` are the model's outputs for its depths."""
    found = record.get("label"), record.get("confidence"), record.get("decided_by"), record.get("depth")
    wanted = expected(record, answers, elements, manifest)
    if wanted is None:
        return None if found[0] is None else f"label {found[0]}, expected none"
    label, confidence, decided_by, depth = wanted
    # The prefix cache gives answers of the model.
    is_same = found[0] == label and (found[2] == decided_by or (found[2], decided_by) == ("cache", "model"))
    # Older records do not say the depth.
    is_same = is_same and ("depth" not in record or found[3] == depth)
    contradicts = first_port(record, manifest) is not None and decided_by != "port"
    is_same = is_same and record.get("contradicts", False) == contradicts
    if not is_same:
        return f"{found}, expected {wanted}"
    if found[1] is not None and abs(found[1] - confidence) > CONFIDENCE_TOLERANCE:
        return f"label {label}: confidence {found[1]}, expected {confidence:.6f}"
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
    series, context, whose = rows_of(found, manifest)
    if not len(series):
        print(f"{args.records}: no flow with {depths_of(manifest)[0][0]} elements to compare")
        return 1
    rows = probabilities(args.bundle, manifest, series, context, args.one_by_one)
    differences, compared = [], 0
    for number, record, channels in found:
        asked = [whose[number, depth] for depth, _ in depths_of(manifest) if (number, depth) in whose]
        wrong = difference(record, [rows[at] for at in asked], len(channels[0]), manifest)
        compared += record.get("label") is not None
        if wrong:
            differences.append(f"{args.records}:{number}: {wrong}")
    for line in differences[:LISTED_DIFFERENCES]:
        print(line)
    print(f"compared {compared}, differences {len(differences)}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
