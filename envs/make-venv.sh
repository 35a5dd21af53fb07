#!/bin/sh
# Make a virtual environment with the locked packages and multicard itself.  usage: make-venv.sh FOLDER [PYTHON]
#
# By uv, which takes a quarter of pip's time: the machine's, or one put into the environment. pip does it where uv fails.
set -eu
folder=$1
python=${2:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || {
    echo "$python is $("$python" --version 2>&1); the locked packages need Python 3.11 or 3.12 (make PYTHON=python3.12 …)" >&2
    exit 1
}
pip() { "$folder/bin/python" -m pip --disable-pip-version-check "$@"; }
if command -v uv > /dev/null; then
    uv=uv
    uv venv --quiet --clear --seed --python "$python" "$folder"
else
    "$python" -m venv --clear "$folder"
    uv=$folder/bin/uv
    pip install --quiet --require-hashes -r "$root/envs/uv.lock" || uv=false
    # uv reads no configuration of pip's, and would keep what it downloads outside of the folder.
    index=${PIP_INDEX_URL:-$(pip config get global.index-url 2> /dev/null || echo https://pypi.org/simple)}
    export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}" UV_CACHE_DIR="$folder/uv-cache"
fi
"$uv" pip install --python "$folder" --compile-bytecode --require-hashes -r "$root/envs/requirements.lock" ||
    pip install --require-hashes -r "$root/envs/requirements.lock"
"$uv" pip install --python "$folder" --no-deps --editable "$root" || pip install --no-deps --editable "$root"
rm -rf "$folder/uv-cache"
