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
(cd "$here" && sha256sum --quiet --check SHA256SUMS)
if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv"
    # What the bundle is without, PYTHON has. (--system-site-packages would skip an environment that PYTHON belongs to.)
    if [ -e "$here/without" ]; then
        purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
        "$python" -c "$purelib" > "$("$venv/bin/python" -c "$purelib")/packages-of-python.pth"
    fi
fi
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps --ignore-installed \
    "$here"/wheels/*.whl
"$venv/bin/multicard" --version
