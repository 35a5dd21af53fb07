"""Write a synthetic SQLite export of Nsight Systems 2023.4 and, beside it, what a reader must find in it.

    python benchmarks/generate.py OUT.sqlite --kernels 1000000

One process per device, 4000 and up; OUT.sqlite.truth.json holds the truth (see truth.py). Nothing in it was measured.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from catalogue import Catalogue
from nsys_export import FIRST_PID, Export
from simulation import Activity, Columns, Process
from truth import History, truth_of

FIRST_STEP_NS = 1_000_000_000
KEPT = {
    "kernels": ("start", "end", "call_start", "call_end", "recorded", "shape", "stream", "thread"),
    "memory": ("start", "end", "call_start", "call_end", "kind", "bytes", "stream"),
    "ranges": ("start", "end", "name"),
}
IN_STEPS = "in_steps"  # whether the host did it in a step


def generate(path: Path, kernels: int, devices: int = 4, steps: int = 100, seed: int = 0) -> dict[str, Any]:
    """Write the export to `path` and the truth to `path` + ".truth.json"; give the truth.

    The kernels are shared out evenly among devices and steps. The same arguments give the same trace.
    """
    cells = devices * steps
    if min(devices, steps) < 1 or kernels < cells:
        raise ValueError(f"kernels: found {kernels}, expected at least one for each of {devices} x {steps} steps")
    catalogue = Catalogue()
    rng = np.random.default_rng([seed, 0])
    processes = [Process(rank, devices, catalogue, np.random.default_rng([seed, 1, rank])) for rank in range(devices)]
    kept: list[dict[str, list[Columns]]] = [{key: [] for key in (*KEPT, "calls")} for _ in processes]
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    export = Export(partial, catalogue, devices)

    def write(activities: dict[int, Activity], in_steps: bool = True) -> None:
        export.append_activity(activities)
        for rank, activity in activities.items():
            for part, keys in KEPT.items():
                columns = getattr(activity, part)
                if columns:
                    own = {key: columns[key] for key in keys}
                    kept[rank][part].append(own | {IN_STEPS: np.full(len(own["start"]), in_steps)})
            calls = activity.calls
            duration = calls["end"] - calls["start"]
            own = {"duration": duration, "function": calls["function"].astype(np.int8)}
            kept[rank]["calls"].append(own | {IN_STEPS: np.full(len(duration), in_steps)})

    def outside_steps(begin: int) -> None:
        # Odd ranks copy before their first and after their last step, so that their capture is not their steps' span.
        write({process.rank: process.work(begin, 0, 1)[0] for process in processes[1::2]}, in_steps=False)

    clock = FIRST_STEP_NS
    if devices > 1:
        outside_steps(clock - 2_000_000)
    for step in range(steps):
        activities, ends = {}, []
        for process in processes:
            cell = step * devices + process.rank
            share = kernels * (cell + 1) // cells - kernels * cell // cells
            activities[process.rank], end = process.step(clock + int(rng.integers(0, 50_000)), share)
            ends.append(end)
        write(activities)
        clock = max(ends) + int(rng.integers(20_000, 200_000))
    if devices > 1:
        outside_steps(clock + 1_000_000)

    parameters = {"kernels": kernels, "devices": devices, "steps": steps, "seed": seed}
    export.finish(parameters, begin=FIRST_STEP_NS // 2, stop=clock + 100_000_000)
    histories = [
        History(FIRST_PID + rank, rank, **{
            part: {key: np.concatenate([columns[key] for columns in rows]) for key in rows[0]}
            for part, rows in parts.items()
        })
        for rank, parts in enumerate(kept)
    ]  # fmt: skip
    truth = truth_of(histories, catalogue)
    beside = path.with_name(path.name + ".truth.json")
    beside.write_text(json.dumps(truth, indent=1) + "\n")
    partial.replace(path)
    return truth


def main() -> None:
    """Parse the command line, generate and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.sqlite")
    parser.add_argument("--kernels", type=int, required=True)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.perf_counter()
    try:
        truth = generate(arguments.out, arguments.kernels, arguments.devices, arguments.steps, arguments.seed)
    except ValueError as error:
        parser.error(str(error))
    size = arguments.out.stat().st_size / 1e6
    counts = f"{truth['kernels_rows']} kernels, {truth['api_rows']} calls"
    print(f"{arguments.out}: {counts}, {size:.0f} MB, {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
