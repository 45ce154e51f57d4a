#!/bin/sh
# Makes models/app-id-k10 and models/app-id-k10-int8 from the labelled flow table: validates, trains,
# exports, quantises, checks, writes the cards.  usage: models/train/run.sh [TABLE]   TABLE: default ../shared/data/series/train.csv.gz
# With options, trains another model into a new folder instead (bundle.py; --help lists the options):
#   models/train/run.sh --unit data --k 3 --features signed_length --out DIR [--table TABLE --data-table TABLE]
#   FENXI_TRAIN_VENV   virtual environment, made if missing (default target/train-venv)
#   PYTHON             Python >= 3.11 to make it with (default python3)
# A relative TABLE is taken from the current folder, the default from the repository's root.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
series=$root/../shared/data/series
case ${1:-} in
-*) table=$series/train.csv.gz own=yes ;;
*) table=${1:-$series/train.csv.gz} own= ;;
esac
venv=${FENXI_TRAIN_VENV:-$root/target/train-venv}
work=$root/target/train
bundle=$root/models/app-id-k10
int8=$bundle-int8

if [ -z "$own" ] && [ ! -r "$table" ]; then
    echo "run.sh: no table at $table; give its path: models/train/run.sh TABLE" >&2
    exit 66
fi

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"

export PYTHONDONTWRITEBYTECODE=1
python=$venv/bin/python
if [ -n "$own" ]; then
    exec "$python" "$here/bundle.py" --table "$table" --data-table "$series/train_data.csv.gz" "$@"
fi
mkdir -p "$work"
"$python" "$here/evaluate.py" "$table" "$work/scores.json"
"$python" "$here/train.py" "$table" "$work/weights.npz"
"$python" "$here/export.py" "$table" "$work/weights.npz" "$bundle"
"$python" "$here/card.py" "$table" "$work/weights.npz" "$work/scores.json" "$bundle"
"$python" "$here/quantize.py" "$table" "$bundle" "$int8"
"$python" "$here/card_int8.py" "$table" "$work/scores.json" "$bundle" "$int8"
"$python" "$here/check_model.py" "$table" "$bundle"
"$python" "$here/check_model.py" "$table" "$int8"
sha256sum "$bundle/model.onnx" "$int8/model.onnx"
