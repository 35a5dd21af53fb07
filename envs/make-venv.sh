#!/bin/sh
# Make a virtual environment with the packages of a lock and multicard itself.  usage: make-venv.sh FOLDER [PYTHON [LOCK]]
#
# LOCK is envs/requirements.lock by default; envs/torchtune.lock has torchtune, with the older torch that it needs.
set -eu
folder=$1
python=${2:-python3}
envs=$(cd "$(dirname "$0")" && pwd)
lock=${3:-$envs/requirements.lock}

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || {
    echo "$python is $("$python" --version 2>&1); the locked packages need Python 3.11 or 3.12 (make PYTHON=python3.12 …)" >&2
    exit 1
}
if command -v uv > /dev/null; then
    uv venv --quiet --clear --seed --python "$python" "$folder"
else
    "$python" -m venv --clear "$folder"
fi
sh "$envs/install-lock.sh" "$folder" "$lock"
sh "$envs/install-lock.sh" "$folder" --no-deps --editable "$(dirname "$envs")"
