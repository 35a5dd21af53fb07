#!/bin/sh
# Gather everything that multicard needs in one folder, for machines without a network.
# usage: make-bundle.sh FOLDER [PYTHON [EXTRAS [WITHOUT]]]
#
# PYTHON is the version that the machine has (3.12; by default that of python3), EXTRAS such as vision,llm come along, and
# packages WITHOUT which it is to be, such as torch,torchvision, the machine has already. Linux on x86-64, glibc 2.28 or newer.
set -eu
folder=$1
version=${2:-python3}
extras=${3:-}
without=${4:-}
root=$(cd "$(dirname "$0")/.." && pwd)

case $version in
    3.*) ;;
    *) version=$("$version" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ;;
esac
[ ! -e "$folder" ] || { echo "$folder: is there already, expected a new name" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
pip() { "$scratch/venv/bin/python" -m pip --disable-pip-version-check "$@"; }
pip install --quiet --require-hashes -r "$root/envs/uv.lock"
UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(pip config get global.index-url 2> /dev/null || echo https://pypi.org/simple)}}
export UV_DEFAULT_INDEX

# What the packages WITHOUT which it is to be need is left out with them: none is wanted on any Python.
echo "$without" | tr ',' '\n' | sed '/^$/d; s/$/; python_version < "0"/' > "$scratch/overrides"
case ,$extras, in
    *,torchtune,*) lock=$root/envs/torchtune.lock ;;
    *) lock=$root/envs/requirements.lock ;;
esac
set --
for extra in $(echo "$extras" | tr ',' ' '); do set -- "$@" --extra "$extra"; done
"$scratch/venv/bin/uv" pip compile --quiet --python-version "$version" --python-platform x86_64-manylinux_2_28 \
    --constraint "$lock" --override "$scratch/overrides" --generate-hashes --no-header "$@" \
    --output-file "$scratch/requirements.txt" "$root/pyproject.toml"

bundle=$scratch/bundle
mkdir -p "$bundle/wheels"
pip download --quiet --no-deps --require-hashes --implementation cp --python-version "$version" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --platform linux_x86_64 --dest "$bundle/wheels" -r "$scratch/requirements.txt"
# Of some packages there is only the source; those are pure Python.
for source in "$bundle"/wheels/*.tar.gz; do
    [ -e "$source" ] || continue
    pip wheel --quiet --no-deps --wheel-dir "$bundle/wheels" "$source"
    rm "$source"
done
pip wheel --quiet --no-deps --wheel-dir "$bundle/wheels" "$root"
(cd "$bundle" && sha256sum wheels/* > SHA256SUMS)
echo "$version" > "$bundle/python-version"
[ -z "$without" ] || echo "$without" > "$bundle/without"
cp "$root/envs/install-bundle.sh" "$bundle/install.sh"
mv "$bundle" "$folder"
echo "$folder: $(ls "$folder/wheels" | wc -l) packages, $(du -sh "$folder" | cut -f1); on the other machine: sh $(basename "$folder")/install.sh VENV"
