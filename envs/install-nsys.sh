#!/bin/sh
# Install Nsight Systems on Debian 12.  usage (as root): install-nsys.sh [PREFIX]     2023.4, from Debian's own archive
#                                                        install-nsys.sh --nvidia     the one of torch's CUDA, for GPUs
#
# Debian 12 itself has 2022.4, whose package draws in a driver library and a desktop. The newer one in Debian 13's
# non-free section is unpacked into a prefix instead; nothing else of Debian 13 is used and the system's package
# sources stay as they are. It records what happens on CPUs; for the GPUs of this torch it is too old.
#
# NVIDIA's package comes from NVIDIA's repository for CUDA, which this adds to the system's, under NVIDIA's licence:
# https://docs.nvidia.com/nsight-systems/CopyrightAndLicenses/
set -eu
prefix=${1:-/opt/nsys}
version=2023.4.4.54~12.4.1-2
of_cuda=2025.6.3 # came with CUDA 13.2
repository=https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64

if [ "$prefix" = --nvidia ]; then
    nsys=/opt/nvidia/nsight-systems/$of_cuda/bin/nsys
else
    nsys=$(command -v nsys || true)
fi
if [ -x "$nsys" ]; then
    echo "nsys is already there: $("$nsys" --version)"
    exit 0
fi
[ "$(id -u)" = 0 ] || { echo "install-nsys.sh: must run as root" >&2; exit 1; }
[ "$(dpkg --print-architecture 2> /dev/null)" = amd64 ] && grep -q '^VERSION_ID="12"' /etc/os-release || {
    echo "install-nsys.sh: made for Debian 12 on amd64; elsewhere install Nsight Systems from NVIDIA" >&2
    exit 1
}

export DEBIAN_FRONTEND=noninteractive
apt-get update -q

if [ "$prefix" = --nvidia ]; then
    apt-get install -q -y --no-install-recommends ca-certificates curl
    keyring=$(mktemp --suffix=.deb)
    trap 'rm -f "$keyring"' EXIT
    curl -fsSL -o "$keyring" "$repository/cuda-keyring_1.1-1_all.deb"
    dpkg -i "$keyring"
    apt-get update -q
    apt-get install -q -y --no-install-recommends "nsight-systems-$of_cuda"
    ln -sfn "$nsys" /usr/local/bin/nsys
    nsys --version
    exit 0
fi

apt-get install -q -y --no-install-recommends libssh-4 libpfm4 libelf1 libsqlite3-0

# An apt state of its own, with Debian 13's non-free section as the only source.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work/lists/partial" "$work/sources"
mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] *\)\{0,1\}\([^ ]*\) bookworm main.*/\2/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2> /dev/null | head -n 1)
cat > "$work/sources/nsys.sources" << SOURCES
Types: deb
URIs: ${mirror:-http://deb.debian.org/debian}
Suites: trixie
Components: non-free
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
apt="apt-get -q -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=$work/sources -o Dir::State::Lists=$work/lists"
$apt update
(cd "$work" && $apt download "nsight-systems=$version" "nsight-systems-target=$version")

mkdir -p "$prefix"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$prefix"; done
lib=$prefix/usr/lib
host=$lib/nsight-systems/host-linux-x64
# nsys looks for its importer beside its real path; without it, it ends with 0 and leaves no report.
ln -sfn ../../nsight-systems/host-linux-x64 "$lib/x86_64-linux-gnu/nsight-systems/host-linux-x64"
# The packaged links to these point out of the prefix.
for name in libssh.so libssh.so.4; do ln -sfn /usr/lib/x86_64-linux-gnu/libssh.so.4 "$host/$name"; done
# `nsys stats` looks for its own modules here.
cp "$lib/python3/dist-packages/nsysstats.py" "$lib/python3/dist-packages/gpustats.py" "$host/python/lib/"
# The graphical part.
rm -rf "$prefix/usr/share" "$host"/libQt6WebEngine* "$host/Plugins" "$host/nsys-ui.bin"
ln -sfn "$lib/nsight-systems/bin/nsys" /usr/local/bin/nsys
nsys --version
