#!/bin/sh
# Make an environment with DeepSpeed within one of make-venv.sh: FOLDER/deepspeed.  usage: install-deepspeed.sh FOLDER
#
# Only the tests need it. It finds the packages of the other environment, which does not find DeepSpeed: Transformers,
# Accelerate and Lightning import it where they find it.
set -eu
folder=$1
own=$folder/deepspeed
lock=$(cd "$(dirname "$0")" && pwd)/deepspeed.lock

path_of() { "$1/bin/python" -c "import sysconfig; print(sysconfig.get_path('$2'))"; }

if ! command -v g++ > /dev/null || [ ! -e "$(path_of "$folder" include)/Python.h" ]; then
    echo "install-deepspeed.sh: needs g++ and Python's headers; without them the tests of DeepSpeed are skipped" >&2
    exit 0
fi
"$folder/bin/python" -m venv --clear --without-pip "$own"
path_of "$folder" purelib > "$(path_of "$own" purelib)/packages.pth"
# On CPUs DeepSpeed uses an operation for shared memory. Unless it was compiled when DeepSpeed was installed, as this
# variable asks for, the first script to start compiles it, in a minute, and fails where there is no ninja.
export DS_BUILD_SHM_COMM=1
# It looks for torch while it is built, so it is built in this environment; a wheel of a cache may be without it.
if command -v uv > /dev/null; then
    uv pip install --python "$own" --no-cache --no-deps --no-build-isolation --require-hashes -r "$lock"
else
    "$folder/bin/python" -m pip --python "$own" install --disable-pip-version-check --no-cache-dir \
        --no-deps --no-build-isolation --use-pep517 --require-hashes -r "$lock"
fi
touch "$own/ready"
