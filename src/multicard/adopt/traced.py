"""What the traces of one run show: its ranks, its GPUs and its steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from multicard.adopt.align import MOST_APART, aligned
from multicard.adopt.table import TracedRun
from multicard.core.errors import TraceError, UserError
from multicard.core.text import natural
from multicard.trace.files import open_trace
from multicard.trace.find_steps import FoundSteps, HostSteps, Owner, find_steps
from multicard.trace.model import Trace

MOST_NAMED = 5  # ranges in a message


@dataclass
class Traced:
    """A run and what its traces show.

    Attributes
    ----------
    run
        What was stated of it.
    traces
        Opened, in the order of `run.files`.
    found
        Its steps as they were found.
    ranks
        Rank of each process with kernels.
    steps
        Those that count: the same ones of each rank, without the stated warm-up.
    notices
        Lines on what its traces lack, or what was set right in them.
    """

    run: TracedRun
    traces: list[Trace]
    found: FoundSteps
    ranks: dict[Owner, int]
    steps: dict[Owner, HostSteps]
    notices: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """GPUs at work."""
        return sum(len(devices) for devices in self.found.devices.values())

    @property
    def count(self) -> int:
        """Number of steps that count, of each rank."""
        return len(next(iter(self.steps.values())).starts) if self.steps else 0


def look_into(run: TracedRun, scratch: Path) -> Traced:
    """Open the traces of a run and find its steps.

    Parameters
    ----------
    scratch
        Folder for the databases of reports, which are exported here; it must stay while the traces are read.

    Raises
    ------
    UserError
        If a trace cannot be read, or does not show the run that is stated.
    """
    try:
        traces = []
        for number, (path, _) in enumerate(run.files):
            folder = scratch / f"{number}"  # reports of two ranks may share a name
            folder.mkdir(parents=True)
            traces.append(open_trace(path, folder))
        found = find_steps(traces, run.facts["step_range"])
    except TraceError as error:
        raise UserError(f"{run.where}: {error}") from error
    names = [path.name for path, _ in run.files]
    idle = [name for number, name in enumerate(names) if all(of != number for of, _ in found.devices)]
    if idle:
        raise UserError(f"{run.where}: {idle[0]}: holds no kernel of a GPU, expected CUDA activity")
    traced = Traced(run, traces, found, {}, {})
    devices = run.parameters.get("devices", 1)
    if traced.devices > devices:
        raise UserError(f"{run.where}: its traces show {traced.devices} GPUs at work, and devices is {devices}")
    traced.ranks = _ranks(run, traces, found)
    if run.facts["step_range"] and found.source is None:
        named = ", ".join(found.ranges[:MOST_NAMED]) or "none"
        missing = f"found no range {run.facts['step_range']!r} in every rank"
        raise UserError(f"{run.where}: step_range: {missing}; the most frequent are: {named}")
    traced.steps = _common_steps(run, traces, found, traced.ranks)
    return traced


def _ranks(run: TracedRun, traces: Sequence[Trace], found: FoundSteps) -> dict[Owner, int]:
    """Ranks of the processes: as stated, as the traces say, else in the order of files, devices and processes."""
    owners = sorted(found.devices, key=lambda owner: (owner[0], natural(str(found.devices[owner][0])), owner[1]))
    stated = [rank for _, rank in run.files]
    if stated[0] is not None:
        if len(owners) > len(stated):
            raise UserError(
                f"{run.where}: rank: one of its traces is of several processes, which have ranks of their own"
            )
        ranks = {owner: stated[owner[0]] for owner in owners}
    else:
        told = {owner: traces[owner[0]].ranks.get(owner[1]) for owner in owners}
        ranks = told if None not in told.values() else {owner: rank for rank, owner in enumerate(owners)}
    twice = next((rank for rank in ranks.values() if list(ranks.values()).count(rank) > 1), None)
    if twice is not None:
        raise UserError(f"{run.where}: two of its traces are of rank {twice}, expected those of one run")
    highest, devices = max(ranks.values()), run.parameters.get("devices", 1)
    if highest >= devices:
        raise UserError(f"{run.where}: holds a trace of rank {highest}, and devices is {devices}")
    return ranks


def _common_steps(
    run: TracedRun, traces: Sequence[Trace], found: FoundSteps, ranks: dict[Owner, int]
) -> dict[Owner, HostSteps]:
    """The steps that all ranks have, without the warm-up; captures may differ by one at their edges."""
    counts = {ranks[owner]: len(own.starts) for owner, own in found.steps.items()}
    if not counts:
        return {}
    (few, fewest), (many, most) = (pick(counts.items(), key=lambda each: each[1]) for pick in (min, max))
    if most > fewest + MOST_APART:
        raise UserError(
            f"{run.where}: ranks of unequal numbers of steps: {fewest} of rank {few}, {most} of rank {many}"
        )
    common, warmup = aligned(traces, found), run.facts["warmup_steps"]
    count = min(len(own.starts) for own in common.values())
    if count <= warmup:
        raise UserError(f"{run.where}: warmup_steps: found {warmup}, and the traces show {count} steps")
    return {owner: own.part(slice(warmup, None)) for owner, own in common.items()}
