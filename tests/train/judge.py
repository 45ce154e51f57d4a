"""Judges the labels of a replay, and the calibration of the bundle, on captures that it was not trained on.

    judge.py LABELLED.csv.gz RECORDS.jsonl SCORES     SCORES: what `fenxi-train compare` printed
"""

import csv
import datetime
import gzip
import json
import sys

RIGHT, NAMED, CALIBRATION_ERROR = 0.95, 0.90, 0.03

table, records, scores = sys.argv[1:]
with gzip.open(table, "rt", newline="") as file:
    truth = {
        (r["community_id"], int(r["first_us"])): r["label"]
        for r in csv.DictReader(file)
        if len(r["data_lengths"].split()) >= 3 and r["midstream"] == "0"
    }
epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
found = {}
with open(records) as file:
    for record in map(json.loads, file):
        if record["type"] == "flow":
            first = datetime.datetime.fromisoformat(record["first"]) - epoch
            found[record["community_id"], first // datetime.timedelta(microseconds=1)] = record["label"]
labels = [(label, found[flow]) for flow, label in truth.items()]
named = [(label, name) for label, name in labels if name not in (None, "unknown")]
right = sum(label == name for label, name in named) / len(named)
with open(scores) as file:
    error = next(float(line.split("|")[5]) for line in file if line.startswith("| 3 |"))
print(f"{len(labels)} flows of 3 data packets: {len(named) / len(labels):.3f} named, {right:.3f} right; ECE at depth 3 {error:.3f}")
if len(named) / len(labels) < NAMED or right < RIGHT or error > CALIBRATION_ERROR:
    sys.exit(f"devices: the aim is {NAMED} named, {RIGHT} right, ECE {CALIBRATION_ERROR} at most")
