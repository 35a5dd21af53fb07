"""What `multicard tune --vary batch-size=auto` found: the largest batch that fits, and the one that pays."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multicard.search.batch import BatchSearch
    from multicard.search.scenario import ScenarioSpace


def batch_lines(search: "BatchSearch", space: "ScenarioSpace", trials: list[dict[str, Any]]) -> list[str]:
    """The answer, then throughput and memory of each batch size."""
    from multicard.analysis.pooling import Pool
    from multicard.core.text import listed
    from multicard.core.units import BYTES, percent, with_unit
    from multicard.search.batch import TOLERANCE

    size, fitting, limit, ratios = search.size, search.fitting, search.too_large, search.ratios()
    used = {key: [row["peak_memory_bytes"] for row in trials if row["run"] in _ids(space, key)] for key in size}
    memory = {key: max((each for each in of if each is not None), default=None) for key, of in used.items()}

    def needs(key: str) -> str:
        return f" ({with_unit(memory[key], BYTES)})" if memory[key] else ""

    top, pays, best, within = fitting[-1], search.pays, search.best, f"{TOLERANCE:.0%}"
    so_far = " so far" if search.unfinished else ""
    if limit is None:
        stopped = f"; {search.ended[0]}" if search.ended else ""
        lines = [f"no batch ran out of memory: {size[top]}{needs(top)} is the largest that ran{stopped}"]
    else:
        lines = [f"largest batch that fits{so_far}: {size[top]}{needs(top)}; {size[limit]} ran out of memory"]
    found = f"{ratios[pays].format(lambda value: percent(value, decimals=1))} as fast as the fastest, {size[best]}"
    larger = "" if pays == top else f"; larger ones gain less than {within}"
    if pays == best:
        lines.append(f"batch that pays{so_far}: {size[pays]}, the fastest{larger}")
    elif search.side(ratios[pays]) > 0:
        lines.append(f"batch that pays{so_far}: {size[pays]}, {found}{larger}")
    else:
        lines.append(f"batch that pays{so_far}: probably {size[pays]}, {found}, not shown to be within {within}")
    if unsure := [str(size[key]) for key in fitting if size[key] < size[pays] and not search.side(ratios[key])]:
        lines.append(f"may be within {within} of it too: {listed(unsure)}")
    pool = Pool([search.completed[key] for key in fitting])
    for at, key in enumerate(fitting):
        share = f"{percent(ratios[key].value, decimals=1)} of the fastest"
        lines.append(f"  {size[key]}: {pool.mean(at).format(space.in_words)}, {share}{needs(key)}")
    return lines


def _ids(space: "ScenarioSpace", key: str) -> set[str]:
    return {run.id for run in space.repeats[key]}
