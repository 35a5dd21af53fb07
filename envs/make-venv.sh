#!/bin/sh
# Make a virtual environment with the locked packages and multicard itself.  usage: make-venv.sh FOLDER [PYTHON]
set -eu
folder=$1
python=${2:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || {
    echo "$python is $("$python" --version 2>&1); multicard needs Python 3.11 or 3.12 (make PYTHON=python3.12 …)" >&2
    exit 1
}
if command -v uv > /dev/null; then
    uv venv --quiet --clear --python "$python" "$folder"
    uv pip install --python "$folder" --compile-bytecode --require-hashes -r "$root/envs/requirements.lock"
    uv pip install --python "$folder" --no-deps --editable "$root"
else
    "$python" -m venv --clear "$folder"
    "$folder/bin/python" -m pip install --disable-pip-version-check --require-hashes -r "$root/envs/requirements.lock"
    "$folder/bin/python" -m pip install --disable-pip-version-check --no-deps --editable "$root"
fi
