#!/bin/sh
# fenxi-train from the source tree: makes a virtual environment with the packages of requirements.lock, if it is missing.
# usage: models/train/run.sh series|label|fit|volume|card|compare|ranges|cascade ...
#   FENXI_TRAIN_VENV   the virtual environment (default target/train-venv)
#   PYTHON             Python >= 3.11 to make it with (default python3)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv=${FENXI_TRAIN_VENV:-$here/../../target/train-venv}

if ! cmp -s "$here/requirements.lock" "$venv/requirements.lock"; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "run.sh: Python 3.11 or later is needed; name it with PYTHON=" >&2
        exit 69
    }
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.lock"
    cp "$here/requirements.lock" "$venv/requirements.lock"
fi
PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1 exec "$venv/bin/python" -m fenxi_train "$@"
