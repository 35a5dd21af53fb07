#!/bin/sh
# Install Open MPI on Debian 12, from Debian's own archive.  usage (as root): install-mpi.sh
#
# Only the tests need it: one starts the ranks of a script by mpirun. A cluster has an MPI of its own.
set -eu

if command -v mpirun > /dev/null; then
    echo "MPI is already there: $(mpirun --version | head -n 1)"
    exit 0
fi
[ "$(id -u)" = 0 ] || { echo "install-mpi.sh: must run as root" >&2; exit 1; }
grep -q '^VERSION_ID="12"' /etc/os-release && grep -q '^ID=debian' /etc/os-release || {
    echo "install-mpi.sh: made for Debian 12; elsewhere install an MPI yourself" >&2
    exit 1
}

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends openmpi-bin
mpirun --version | head -n 1
