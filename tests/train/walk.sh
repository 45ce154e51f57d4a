#!/bin/sh
# Walks docs/train.md on demo/office.pcap: series, label, fit, then fenxi checks and runs the new bundle. Flows are held out, because
# the demo is one capture, and some labels have one host only.
# usage: tests/train/walk.sh [FENXI]     FENXI: the program (default target/release/fenxi)
#   TRAIN         the trainer (default models/train/run.sh)
set -eu

cd "$(dirname "$0")/../.."
fenxi=${1:-target/release/fenxi}
train=${TRAIN:-models/train/run.sh}
work=$(mktemp -d "${TMPDIR:-/tmp}/fenxi-walk.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM

$train series demo/office.pcap --fenxi "$fenxi" --out "$work/flows.csv.gz"
$train label "$work/flows.csv.gz" --by-hosts tests/train/office_servers.csv --out "$work/labelled.csv.gz"
$train fit "$work/labelled.csv.gz" --out "$work/office" --split-by flow --k 3 --min-flows 10 --steps 200 --nets 1
$train card "$work/office" >"$work/card"
grep -q '^Batches agree to the bit; golden outputs match.' "$work/card"
$train compare "$work/office" --labels "$work/labelled.csv.gz" --split-by host >"$work/scores"
grep -q '^| 3 |' "$work/scores"

"$fenxi" model check "$work/office"
"$fenxi" model bench "$work/office" --labels "$work/labelled.csv.gz" --rows "$work/rows.csv" >"$work/bench"
grep -q ' get a name' "$work/bench" && grep -q ',web,web,' "$work/rows.csv"
"$fenxi" replay --model "$work/office" --flows "$work/records.jsonl" demo/office.pcap >"$work/summary"
grep -q '"label":"web"' "$work/records.jsonl"

# A forest answers at every depth, and fenxi reads it as it reads a network.
$train fit "$work/labelled.csv.gz" --out "$work/forest" --split-by flow --depths 2,3 --min-flows 10 --model forest --trees 5 \
    --context protocol,server_port
$train card "$work/forest" --beside "$work/office" | grep -q '^a row costs '
"$fenxi" model check "$work/forest"
"$fenxi" replay --model "$work/forest" --flows "$work/forest.jsonl" demo/office.pcap >"$work/summary"
grep -q '"label":"web"' "$work/forest.jsonl"

# The same without a capture: the records of a service, of which rotation made three files.
"$fenxi" replay --set records.series=0.8 --flows "$work/live.jsonl" demo/office.pcap >"$work/summary"
lines=$(wc -l <"$work/live.jsonl")
head -n $((lines / 3)) "$work/live.jsonl" >"$work/r.jsonl.2" && gzip "$work/r.jsonl.2"
tail -n +$((lines / 3 + 1)) "$work/live.jsonl" | head -n $((lines / 3)) >"$work/r.jsonl.1"
tail -n +$((lines / 3 * 2 + 1)) "$work/live.jsonl" >"$work/r.jsonl"
$train series "$work"/r.jsonl* --out "$work/sampled.csv.gz"
$train label "$work/sampled.csv.gz" --by-hosts tests/train/office_servers.csv --out "$work/sampled-labelled.csv.gz"
[ "$(gzip -dc "$work/sampled.csv.gz" | cut -d, -f1 | sort -u | wc -l)" = 2 ] # one capture, and the name of the column
code=0; $train fit "$work/sampled-labelled.csv.gz" --out "$work/none" --k 3 --min-flows 5 2>"$work/refusal" || code=$?
[ "$code" = 65 ] && grep -q 'belong to one capture' "$work/refusal"
$train fit "$work/sampled-labelled.csv.gz" --out "$work/sampled" --split-by flow --k 3 --min-flows 10 --model forest --trees 5
"$fenxi" replay --model "$work/sampled" --flows "$work/sampled.jsonl" demo/office.pcap >"$work/summary"
grep -q '"label":"web"' "$work/sampled.jsonl"

# What must be refused is refused, and nothing is written over.
code=0; $train fit "$work/labelled.csv.gz" --out "$work/office" 2>"$work/refusal" || code=$?
[ "$code" = 73 ]
printf 'data_lengths,label\n12 x 3,web\n' >"$work/bad.csv"
code=0; $train fit "$work/bad.csv" --out "$work/none" --split-by host 2>"$work/refusal" || code=$?
[ "$code" = 65 ] && [ ! -e "$work/none" ]
echo "walk: passed"
