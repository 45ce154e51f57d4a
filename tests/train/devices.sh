#!/bin/sh
# Walks docs/train.md on captures of smart-home devices, two of each, as if they were one's own network: trains on one capture of
# each pair, judges on the other. Devices use the same ports in every capture, and most labels are in one training capture only.
# usage: tests/train/devices.sh [FENXI]     FENXI: the program (default target/release/fenxi)
#   TRAIN         the trainer (default models/train/run.sh)
# Skipped without ../shared, unless FENXI_REQUIRE_ALL=1.
set -eu

cd "$(dirname "$0")/../.."
fenxi=${1:-target/release/fenxi}
train=${TRAIN:-models/train/run.sh}
captures=../shared/data/labelled/iot_captures
if [ ! -d "$captures" ]; then
    echo "SKIPPED devices: needs $captures"
    [ "${FENXI_REQUIRE_ALL:-0}" = 1 ] && exit 1
    exit 0
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/fenxi-devices.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
options="--model forest --leaf 1 --context protocol,server_port --min-flows 3"

labelled() { # NAME CAPTURE...: a labelled table
    name=$1 && shift
    $train series "$@" --fenxi "$fenxi" --out "$work/$name.flows.csv.gz"
    $train label "$work/$name.flows.csv.gz" --by-hosts tests/train/iot_hosts.csv --out "$work/$name.csv.gz"
}
# shellcheck disable=SC2046 # no name has a space
labelled first $(ls "$captures"/*.pcap | sed -n 'p;n')
# shellcheck disable=SC2046
labelled second $(ls "$captures"/*.pcap | sed -n 'n;p')

# A label in one capture only is refused; the last cure that is named makes a model.
code=0; $train fit "$work/first.csv.gz" --out "$work/devices" $options 2>"$work/refusal" || code=$?
[ "$code" = 65 ] && grep -q 'all flows of a label belong to one capture.* Aria (/.*\.pcap).*--split-by (flow' "$work/refusal"
$train fit "$work/first.csv.gz" --out "$work/devices" $options --split-by flow
$train compare "$work/devices" --labels "$work/second.csv.gz" >"$work/scores"
"$fenxi" replay --model "$work/devices" --flows "$work/records.jsonl" $(ls "$captures"/*.pcap | sed -n 'n;p') >"$work/summary"
python3 tests/train/judge.py "$work/second.csv.gz" "$work/records.jsonl" "$work/scores"

# With two captures of each device, each capture is a group of its own, and no label is held out whole.
labelled both "$captures"/*.pcap
$train fit "$work/both.csv.gz" --out "$work/all" $options 2>"$work/said"
grep -q '5 folds by capture, 54 groups' "$work/said"
grep -q 'depth 3: accuracy 0\.9' "$work/said"
echo "devices: passed"
