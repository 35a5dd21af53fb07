"""Which of several configurations counts that differ only in how their runs are observed."""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Sequence

from multicard.analysis.evidence import OBSERVATION, Configuration


def observed_once(
    sides: Sequence[Sequence[Configuration]],
    jobs: Sequence[Hashable],
    blocks: Sequence[int],
    judged: Sequence[bool] | None = None,
    observation: Collection[str] = OBSERVATION,
) -> list[int]:
    """Indices of the entries that count, in order: one per job, or the job would have more weight than others.

    It is one that may be judged; of these one that is observed as most entries of all jobs are, so that those which are
    compared differ as little as they can; of these one with the most blocks; of these one with the most defaults of
    `observation`. No result has a say.

    Parameters
    ----------
    sides, jobs
        The configurations that each entry is of, and what tells their jobs apart.
    blocks, judged
        How many blocks each has, and whether it may be judged; by default all may.
    observation
        Parameters that say how a run is observed.
    """
    stated = [tuple(side[name] for side in each for name in observation) for each in sides]
    defaults = [tuple(side.default(name) for side in each for name in observation) for each in sides]
    common = Counter(stated)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, job in enumerate(jobs):
        alike[job].append(index)

    def rank(index: int) -> tuple[bool, int, int, int, str]:
        own = stated[index]
        changed = sum(value != default for value, default in zip(own, defaults[index], strict=True))
        return judged is not None and not judged[index], -common[own], -blocks[index], changed, str(own)

    return sorted(min(indices, key=rank) for indices in alike.values())
