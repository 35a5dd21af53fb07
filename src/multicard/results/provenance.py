"""The provenance of a run: its machine, the versions of its software, and its data."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from multicard.core.values import JsonObject
from multicard.runs.environment import gpu_names, is_synthetic, machine_in_words, smallest_gpu_bytes, versions_in_words
from multicard.runs.record import RunRecord

_GPU_COUNT = re.compile(r"(?:^|(?<=, ))\d+ × ")  # such as "4 × " in `Provenance.machine`
_PROFILER = re.compile(r"(?:^|, )profiler \w+")  # such as ", profiler nsys" in `Provenance.versions`

# The columns of `runs_info` that hold a `Provenance`: one for each of its fields, with the same name.
SCHEMA = pa.schema(
    {
        "machine": pa.string(),
        "versions": pa.string(),
        "gpu": pa.string(),
        "gpu_memory_bytes": pa.int64(),
        "numa_nodes": pa.list_(pa.int64()),
        "usable_cpus": pa.int64(),
        "data_source": pa.string(),
        "group": pa.list_(pa.string()),
    }
)


@dataclass(frozen=True)
class Provenance:
    """Machine, versions and data of a run. A field is None, or an empty collection, if it was not recorded."""

    # GPUs, processor and CPUs in words, such as "4 × NVIDIA H100, AMD EPYC 9334, 128 CPUs".
    machine: str | None = None
    # Versions in words, such as "torch 2.11.0, profiler nsys".
    versions: str | None = None
    # Names of the kinds of GPUs, joined by commas.
    gpu: str | None = None
    # Memory of the GPU that has least.
    gpu_memory_bytes: int | None = None
    # NUMA nodes of the CPUs that the ranks were bound to; the machine may have more. Empty if not recorded.
    numa_nodes: frozenset[int] = frozenset()
    # Number of CPUs of a node that the job could use.
    usable_cpus: int | None = None
    # The `source` of the data set in the configuration, such as "imagefolder".
    data_source: str | None = None
    # The group of scenarios in whose blocks the run ran: the scenarios that share runs with its own, and its own.
    group: tuple[str, ...] = ()

    @property
    def kind(self) -> str | None:
        """The machine without the numbers of its GPUs, because Slurm may give a job only some of them.

        >>> Provenance("4 × NVIDIA H100, AMD EPYC 9334, 128 CPUs").kind
        'NVIDIA H100, AMD EPYC 9334, 128 CPUs'
        """
        return self.machine and _GPU_COUNT.sub("", self.machine)

    @property
    def gpu_count(self) -> int | None:
        """Number of GPUs of a node that the job could use, all kinds together; None if no GPU is recorded.

        >>> Provenance("4 × NVIDIA H100, AMD EPYC 9334, 128 CPUs").gpu_count
        4
        """
        counts = [int(count.removesuffix(" × ")) for count in _GPU_COUNT.findall(self.machine or "")]
        return sum(counts) or None

    @property
    def software(self) -> str | None:
        """The versions without the name of the profiler; None if nothing else is recorded.

        >>> Provenance(versions="torch 2.11.0, profiler nsys, train.py 0a1b2c").software
        'torch 2.11.0, train.py 0a1b2c'
        """
        return (self.versions and _PROFILER.sub("", self.versions).removeprefix(", ")) or None

    @property
    def is_synthetic(self) -> bool:
        """True if the name of the machine or of its GPUs is marked as synthetic: the timings are then invented."""
        return is_synthetic((self.machine, self.gpu))


def provenance_of(record: RunRecord) -> Provenance:
    """Return the provenance that the record of a run states."""
    hardware = record.hardware
    bindings = [rank.binding for rank in record.ranks if rank.binding]
    return Provenance(
        machine=machine_in_words(hardware) if hardware else None,
        versions=versions_in_words(record),
        gpu=", ".join(dict.fromkeys(gpu_names(hardware))) or None,
        gpu_memory_bytes=smallest_gpu_bytes(hardware),
        numa_nodes=frozenset(node for binding in bindings for node in binding.numa_nodes or ()),
        usable_cpus=hardware.usable_cpus if hardware else None,
        data_source=record.data.source if record.data else None,
        group=record.order.group if record.order else (),
    )


def as_cells(provenance: Provenance) -> JsonObject:
    """Return a provenance as a row of a table with the columns of `SCHEMA`."""
    cells: JsonObject = {name: getattr(provenance, name) for name in SCHEMA.names}
    return cells | {"numa_nodes": sorted(provenance.numa_nodes), "group": list(provenance.group)}


def from_cells(cells: Mapping[str, Any]) -> Provenance:
    """Return the provenance that a row of `runs_info` holds; `cells`: the row from `pyarrow.Table.to_pylist`."""
    stated = {name: cells[name] for name in SCHEMA.names}
    return Provenance(
        **stated | {"numa_nodes": frozenset(cells["numa_nodes"] or ()), "group": tuple(cells["group"] or ())}
    )


def distinguishing_words(places: Sequence[tuple[str | None, str | None]]) -> list[str]:
    """Return for each place, a pair of machine and versions, the words that distinguish it from the others.

    These are the parts between commas that not all places have, such as the processor. If all places are equal, the
    words of each are empty. A place without a part of its own, among others that have some, gets its first part.

    >>> distinguishing_words([("H100, EPYC", "torch 2.11.0, python 3.12"), ("H100, Xeon", "torch 2.10.0, python 3.12")])
    ['EPYC, torch 2.11.0', 'Xeon, torch 2.10.0']
    """
    parts_of_places = [
        f"{machine or 'machine unknown'}, {versions or 'versions unknown'}".split(", ") for machine, versions in places
    ]
    common = _common(parts_of_places)
    are_several = len({tuple(parts) for parts in parts_of_places}) > 1
    words = []
    for parts in parts_of_places:
        different = [part for part in parts if part not in common]
        if not different and are_several:
            different = parts[:1]
        words.append(", ".join(different))
    return words


def _common(parts_of_places: Iterable[Sequence[str]]) -> set[str]:
    sets = [set(parts) for parts in parts_of_places]
    return set.intersection(*sets) if sets else set()
