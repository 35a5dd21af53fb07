#!/bin/sh
# Install Slurm on Debian 12, from Debian's own archive.  usage (as root): install-slurm.sh
#
# Only the tests need it: tests/slurm starts a cluster of its own on this machine. A real cluster has its Slurm. Nothing
# is started and nothing is configured here.
set -eu

missing=
for program in slurmctld slurmd munged; do
    [ -x "/usr/sbin/$program" ] || command -v "$program" > /dev/null || missing="$missing $program"
done
for program in srun sbatch munge; do command -v "$program" > /dev/null || missing="$missing $program"; done
if [ -z "$missing" ]; then
    echo "Slurm is already there: $(slurmctld -V)"
    exit 0
fi
[ "$(id -u)" = 0 ] || { echo "install-slurm.sh: must run as root" >&2; exit 1; }
grep -q '^VERSION_ID="12"' /etc/os-release && grep -q '^ID=debian' /etc/os-release || {
    echo "install-slurm.sh: made for Debian 12; elsewhere install slurmctld, slurmd, slurm-client and munge yourself" >&2
    exit 1
}

# The packages would start their services where there is systemd; without a configuration these only fail.
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends slurmctld slurmd slurm-client munge
slurmctld -V
