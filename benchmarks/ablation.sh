#!/bin/sh
# Ablated runs of a script beside the same script edited by hand, two processes over a loopback of 400 Mbit/s. As root,
# in the root of the project, with its environment active: sh benchmarks/ablation.sh
set -eu
[ "${INSIDE:-}" ] || exec env INSIDE=1 unshare --net sh "$0"
ip link set lo up
tc qdisc add dev lo root tbf rate 400mbit burst 128kb latency 2s
export OMP_NUM_THREADS=1
script=$PWD/benchmarks/ablation/train.py
cd "$(mktemp -d)"
for workers in 0 1; do
    name=workers-$workers
    multicard scale --device cpu --devices 2 --repeats 3 --warmup 10 --steps 60 --ablate loader,communication \
        --config-out "$name.yaml" -- "$script" --workers "$workers" > "$name.log" 2>&1
    python - "$name" << 'END'
import sys, pandas as pd
rows = pd.read_csv(f"results-{sys.argv[1]}/scenarios/scale/measures.csv")
print(sys.argv[1], "by multicard (ms):", (1e3 * rows.groupby("ablate")["iteration_time_s"].mean()).round(1).to_dict())
END
    for without in "" loader communication loader+communication; do
        for repeat in 1 2 3; do
            printf %s "$name by hand, without ${without:-nothing}: "
            WITHOUT=$without torchrun --standalone --nproc-per-node 2 "$script" --workers "$workers" --steps 120 2> /dev/null
        done
    done
done
