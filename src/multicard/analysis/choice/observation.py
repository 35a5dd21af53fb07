"""Which of several configurations counts that differ only in how their runs are observed."""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence

from multicard.analysis.evidence import OBSERVATION, Configuration


def observed_once(
    sides: Sequence[Sequence[Configuration]],
    jobs: Sequence[Hashable],
    blocks: Sequence[int],
    observation: Collection[str] = OBSERVATION,
) -> list[int]:
    """Indices of the entries that count, in order: one per job, or the job would have more weight than others.

    It is one that is observed as most entries of all jobs are, so that those which are compared differ as little as
    they can; of these one with the most blocks; of these one with the most defaults of `observation`, the parameters
    that say how a run is observed. No result has a say.

    `sides` are the configurations that each entry is of, `jobs` tells their jobs apart, and `blocks` is how many blocks
    each has.
    """
    stated = [tuple(side[name] for side in each for name in observation) for each in sides]
    defaults = [tuple(side.default(name) for side in each for name in observation) for each in sides]
    common = Counter(stated)

    def rank(index: int) -> tuple[int, int, int, str]:
        changed = sum(value != default for value, default in zip(stated[index], defaults[index], strict=True))
        return -common[stated[index]], -blocks[index], changed, str(stated[index])

    found: dict[Hashable, int] = {}
    for index in sorted(range(len(jobs)), key=rank):
        found.setdefault(jobs[index], index)
    return sorted(found.values())
