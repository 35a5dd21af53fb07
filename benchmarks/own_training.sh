#!/bin/sh
# Makes the figures of README.md and docs/own-training.md again: the page's own script and command, with 100 steps and five repeats.
# Needs `multicard` on the PATH, and an idle machine for narrow intervals.
#
#     own_training.sh [FOLDER]    FOLDER keeps the runs; a call that was interrupted goes on there
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-}
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    trap 'rm -r "$folder"' EXIT
fi
mkdir -p "$folder"
cd "$folder"
sed -n '/^```python/,/^```$/{/^```python/d;/^```$/q;p}' "$root/docs/own-training.md" > train.py
multicard scale --device cpu --devices 1,2 --vary batch-size=16,64 --steps 100 --repeats 5 -- train.py --batch-size '{batch-size}'
cp results/figures/scale/speedup.png "$root/docs/own-training-speedup.png"
cp results/figures/scale/step_breakdown.png "$root/docs/own-training-steps.png"
