#!/bin/sh
# Install multicard from this folder, without a network.  usage: install.sh VENV [PYTHON]
#
# VENV is an environment to install into, or a folder in which one is made by PYTHON (default: python3).
set -eu
[ $# -gt 0 ] || { echo "usage: install.sh VENV [PYTHON]" >&2; exit 2; }
venv=$1
here=$(cd "$(dirname "$0")" && pwd)
wanted=$(cat "$here/python-version")
python=${2:-python3}
if [ -x "$venv/bin/python" ]; then python=$venv/bin/python; fi
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$wanted" ] || { echo "$python is Python $found; this bundle is for Python $wanted" >&2; exit 1; }
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
(cd "$here" && sha256sum --quiet --check SHA256SUMS)
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps "$here"/wheels/*.whl
"$venv/bin/multicard" --version
