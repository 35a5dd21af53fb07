"""What a loader gives alone: `python -m multicard.machine.loader_job PARAMETERS DATA WORKERS,… SECONDS`.

PARAMETERS are those of a run on one device, as JSON; DATA is the folder of its prepared data set. For each
number of workers it takes batches for some seconds, as a training loop would that takes no time, and tells a row.
"""

import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from multicard.core.facts import tell
from multicard.experiment.workload import WORKLOADS
from multicard.machine.timing import BLOCKS
from multicard.record.visible import rank_devices


def main(stated: dict[str, Any], data: Path, workers: Sequence[int], seconds: float) -> None:
    """Measure the loader with each number of workers."""
    work = WORKLOADS[stated["workload"]]
    for number in workers:
        p = work.parameters.model_validate(stated | {"num_workers": number})
        torch.set_num_threads(p.threads)
        [device] = rank_devices(p)
        batches, ahead = work.batches_alone(p, data, device)
        # As before a profiled window: what was read ahead while the loader started is not what it can keep up.
        times = taken(batches, 1 + 2 * ahead, seconds)
        tell(row={"measure": "loader", "num_workers": number, "samples": p.batch_of_rank, "times_s": times})
    tell(done=True)


def taken(batches: Iterator[Any], dropped: int, seconds: float) -> list[float]:
    """Seconds per batch of consecutive blocks of batches, taken for `seconds`, or until there is one for each block.

    Passes that end and start are in it. Up to `BLOCKS` - 1 last batches, which fill no block, are left out.
    """
    for _ in range(dropped):
        next(batches)
    ends = [time.perf_counter()]
    while len(ends) <= BLOCKS or ends[-1] - ends[0] < seconds:
        next(batches)
        ends.append(time.perf_counter())
    each = (len(ends) - 1) // BLOCKS
    bounds = ends[: BLOCKS * each + 1 : each]
    return [(end - start) / each for start, end in itertools.pairwise(bounds)]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]), [int(n) for n in sys.argv[3].split(",")], float(sys.argv[4]))
