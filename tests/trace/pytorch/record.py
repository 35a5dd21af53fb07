"""Record the traces beside this file with the PyTorch that runs it, version 2.13 or later; needs no GPU.

    python tests/trace/pytorch/record.py rank 0 FOLDER & python tests/trace/pytorch/record.py rank 1 FOLDER
    python tests/trace/pytorch/record.py shorten FOLDER     # into tests/trace/pytorch/VERSION

Two ranks train a small network by DDP over gloo. Each writes what it recorded by either exporter: Kineto's in C++
(kineto0, kineto1) and PyTorch's in Python (python0, python1). `key_averages.json` has what PyTorch itself counts: for
each range the number of calls and their total in microseconds.

Of the many operators, marks of memory, functions of Python, and arrows from forward to backward, a few of each are
kept. The name of the machine is replaced.
"""

import gzip
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

KEPT_EVENTS = {"cpu_op": 3, "python_function": 3, "cpu_instant_event": 2}


def record(rank: int, folder: Path) -> None:
    """Train, and write the traces and averages of one rank."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def write(profiler: profile) -> None:
        for exporter in ("kineto", "python"):
            path = str(folder / f"{exporter}{rank}.json")
            profiler.export_chrome_trace(path, use_python_export=exporter == "python")
        averages: dict[str, tuple[int, float]] = {}
        for average in profiler.key_averages():
            averages[average.key] = (average.count, round(average.cpu_time_total, 3))
        (folder / f"averages{rank}.json").write_text(json.dumps(averages))

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=2, warmup=1, active=2),
        on_trace_ready=write,
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as profiler:
        for _ in range(5):
            with record_function("forward"):
                loss = model(torch.ones(32, 16)).square().mean()
            with record_function("backward"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            profiler.step()
    dist.destroy_process_group()


def shorten(folder: Path) -> None:
    """Write short forms of the traces that `record` left in a folder."""
    import torch

    target = Path(__file__).parent / torch.__version__.partition("+")[0]
    target.mkdir(exist_ok=True)
    averages: dict[str, dict[str, Any]] = {}
    for rank in (0, 1):
        ranges: set[str] = set()
        for exporter in ("kineto", "python"):
            name = f"{exporter}{rank}.json"
            trace = json.loads((folder / name).read_text())
            events = trace.pop("traceEvents")
            ranges |= {event["name"].split("#")[0] for event in events if event.get("cat") == "user_annotation"}
            trace |= {"traceName": f"{name}.gz"} | {key: "0" * 32 for key in ["trace_id"] if key in trace}
            trace |= {key: "node1" for key in ["host_name"] if key in trace}
            lines = ",\n".join(json.dumps(event) for event in some_of(events))
            text = f'{json.dumps(trace)[:-1]}, "traceEvents": [\n{lines}\n]}}\n'
            (target / f"{name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        found = json.loads((folder / f"averages{rank}.json").read_text())
        averages[f"rank {rank}"] = {name: found[name] for name in found if name.rstrip("*").split("#")[0] in ranges}
    (target / "key_averages.json").write_text(json.dumps(averages) + "\n")


def some_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all ranges and metadata, some events of each other category, and one arrow with both of its ends."""
    arrow_ends = Counter(event["id"] for event in events if event.get("cat") == "fwdbwd")
    arrow = next(number for number, ends in arrow_ends.items() if ends == 2)
    counts = Counter[str]()
    kept: list[dict[str, Any]] = []
    for event in events:
        category = event.get("cat", "")
        counts[category] += 1
        is_kept = event["id"] == arrow if category == "fwdbwd" else counts[category] <= KEPT_EVENTS.get(category, 1000)
        if is_kept:
            kept.append(event)
    return kept


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rank", rank, folder]:
            record(int(rank), Path(folder))
        case ["shorten", folder]:
            shorten(Path(folder))
        case _:
            sys.exit(__doc__)
