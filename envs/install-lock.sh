#!/bin/sh
# Install into a virtual environment.  usage: install-lock.sh FOLDER LOCK, or install-lock.sh FOLDER PIP-ARGUMENT...
#
# Packages of a lock are installed if their checksums are those of the lock. By uv, which takes a quarter of pip's time: the
# machine's, or one put into the environment. pip does it where uv fails.
set -eu
folder=$1
shift
envs=$(cd "$(dirname "$0")" && pwd)
case $1 in
    *.lock) set -- --require-hashes -r "$1" ;;
esac

pip() { "$folder/bin/python" -m pip --disable-pip-version-check "$@"; }
if command -v uv > /dev/null; then
    uv=uv
else
    uv=$folder/bin/uv
    [ -x "$uv" ] || pip install --quiet --require-hashes -r "$envs/uv.lock" || uv=false
    # uv reads no configuration of pip's, and would keep what it downloads outside of the folder.
    index=${PIP_INDEX_URL:-$(pip config get global.index-url 2> /dev/null || echo https://pypi.org/simple)}
    export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}" UV_CACHE_DIR="$folder/uv-cache"
fi
"$uv" pip install --python "$folder" --compile-bytecode "$@" || pip install "$@"
rm -rf "$folder/uv-cache"
