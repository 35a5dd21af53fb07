#!/bin/sh
# Install Chromium on Debian 12, from Debian's own archive.  usage (as root): install-chromium.sh
#
# Only a test needs it: it opens the report in a real browser, without a window. Elsewhere any Chromium or Chrome on the
# PATH will do; without one the test is skipped.
set -eu

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" > /dev/null; then
        echo "$name is already there: $("$name" --version 2> /dev/null)"
        exit 0
    fi
done
[ "$(id -u)" = 0 ] || { echo "install-chromium.sh: must run as root" >&2; exit 1; }
grep -q '^VERSION_ID="12"' /etc/os-release && grep -q '^ID=debian' /etc/os-release || {
    echo "install-chromium.sh: made for Debian 12; elsewhere install Chromium or Chrome yourself" >&2
    exit 1
}

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core
chromium --version
