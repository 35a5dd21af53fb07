"""Where, with what and on which data a run was made."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from multicard.runs.environment import gpu_names, is_synthetic, machine_in_words, smallest_gpu_bytes, versions_in_words
from multicard.runs.record import RunRecord

_GPU_COUNT = re.compile(r"(?:^|(?<=, ))\d+ × ")  # in the name of a machine
_PROFILER = re.compile(r"(?:^|, )profiler \w+")  # among versions

# Columns of `runs_info` that hold a provenance, by the names of its fields.
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
    """Machine, versions and data of a run; None where its record does not say."""

    # GPUs, processor and CPUs in words, such as "4 × NVIDIA H100, AMD EPYC 9334, 128 CPUs".
    machine: str | None = None
    # Versions in words, such as "torch 2.11.0, profiler nsys".
    versions: str | None = None
    # Names of the kinds of GPUs, joined by commas.
    gpu: str | None = None
    # Memory of the smallest GPU.
    gpu_memory_bytes: int | None = None
    # NUMA nodes that its ranks ran on, so the machine has at least as many.
    numa_nodes: frozenset[int] = frozenset()
    # CPUs of a node that its job could use.
    usable_cpus: int | None = None
    # Kind of the data set.
    data_source: str | None = None
    # Scenarios whose runs it ran among, block by block; empty where that is not known.
    group: tuple[str, ...] = ()

    @property
    def kind(self) -> str | None:
        """The kind of machine, whichever part of its GPUs a job was given, as by Slurm.

        >>> Provenance("4 × NVIDIA H100, AMD EPYC 9334, 128 CPUs").kind
        'NVIDIA H100, AMD EPYC 9334, 128 CPUs'
        """
        return self.machine and _GPU_COUNT.sub("", self.machine)

    @property
    def gpu_count(self) -> int | None:
        """Number of GPUs of a node that its job could use, of all kinds; None where none is recorded.

        >>> Provenance("4 × NVIDIA H100, AMD EPYC 9334, 128 CPUs").gpu_count
        4
        """
        counts = [int(count.removesuffix(" × ")) for count in _GPU_COUNT.findall(self.machine or "")]
        return sum(counts) or None

    @property
    def software(self) -> str | None:
        """The versions, whichever profiler observed the run; None where the record does not say.

        >>> Provenance(versions="torch 2.11.0, profiler nsys, train.py 0a1b2c").software
        'torch 2.11.0, train.py 0a1b2c'
        """
        return (self.versions and _PROFILER.sub("", self.versions).removeprefix(", ")) or None

    @property
    def is_synthetic(self) -> bool:
        """True if timings are invented, by the name of the machine or of its GPUs."""
        return is_synthetic((self.machine, self.gpu))


def provenance_of(record: RunRecord) -> Provenance:
    """Return the provenance of a run by its record."""
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


def as_cells(provenance: Provenance) -> dict[str, Any]:
    """Return a provenance as cells of `SCHEMA`."""
    cells = {name: getattr(provenance, name) for name in SCHEMA.names}
    return cells | {"numa_nodes": sorted(provenance.numa_nodes), "group": list(provenance.group)}


def from_cells(cells: Mapping[str, Any]) -> Provenance:
    """Return the provenance that a row of `runs_info` holds, as Arrow gives it."""
    stated = {name: cells[name] for name in SCHEMA.names}
    return Provenance(
        **stated | {"numa_nodes": frozenset(cells["numa_nodes"] or ()), "group": tuple(cells["group"] or ())}
    )


def distinguishing_words(places: Sequence[tuple[str | None, str | None]]) -> list[str]:
    """Return what distinguishes each machine with its versions from the others; empty where nothing does.

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
