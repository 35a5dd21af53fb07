"""Collect the files that the ranks and the samplers of a job left in its scratch folder."""

import csv
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from multicard.core.files import read_json, write_csv
from multicard.core.layout import (
    CPU_SAMPLES,
    EPOCH_COLUMNS,
    EPOCHS,
    GPU_SAMPLES,
    NODE,
    STEP_COLUMNS,
    STEPS,
    node_file,
    node_files,
    rank_file,
)
from multicard.launch.cpu_samples import host_record
from multicard.launch.gpu_samples import GpuSamples
from multicard.runs.parameters import JobParameters
from multicard.runs.rank_report import RankReport, read_rank_report
from multicard.runs.record import NodeConditions, NodeRecord, RankRecord


@dataclass(frozen=True)
class Collected:
    """Facts about a job that has ended, made by `collect`. Its tables, trace and log are not among them."""

    reports: Sequence[RankReport]  # in the order of the ranks; a rank without rank.json has none
    ranks: Sequence[RankRecord]  # one for each report: the report, and the samples of the rank's GPUs
    nodes: Sequence[NodeRecord]  # one for each node of a job on several nodes; empty for a job on one node
    conditions: Sequence[NodeConditions | None]  # one for each node; None if the CPUs of the node were not sampled

    @property
    def node_of(self) -> dict[int, str]:
        """Name of each rank's node; empty for a job on one node."""
        return {rank: node.name for node in self.nodes for rank in node.ranks if node.name is not None}


def collect(scratch: Path, folder: Path, parameters: JobParameters) -> Collected:
    """Read what a job left in its scratch folder, and move the samples of GPUs into the run directory `folder`."""
    paths = [scratch / rank_file("rank.json", rank) for rank in range(parameters.ranks)]
    reports = number_batches([read_rank_report(path) for path in paths if path.exists()])
    samples = _gpu_samples(scratch, folder, parameters.nodes)
    ranks = [_rank_record(report, parameters, samples) for report in reports]
    nodes = _nodes(scratch, parameters, reports) if parameters.nodes > 1 else []
    return Collected(reports, ranks, nodes, _conditions(scratch, parameters.nodes, ranks))


def number_batches(reports: Sequence[RankReport]) -> list[RankReport]:
    """Return the reports with numbers, in order of appearance, in place of the checksums of the ranks' first batches.

    Equal batches have equal numbers. A checksum of very small data would tell the data.
    """
    numbers: dict[int, int] = {}
    numbered = []
    for report in reports:
        observed = report.observed
        if observed is not None and observed.first_batches:
            batches = tuple(numbers.setdefault(checksum, len(numbers)) for checksum in observed.first_batches)
            observed = observed.model_copy(update={"first_batches": batches})
        numbered.append(report.model_copy(update={"observed": observed}))
    return numbered


def _rank_record(report: RankReport, parameters: JobParameters, samples: Sequence[GpuSamples]) -> RankRecord:
    """Return the record of a rank: its report, and its GPUs' energy, conditions and memory during its measured steps.

    `samples`: of the GPUs of each node, in the order of the nodes.
    """
    node = report.rank // parameters.ranks_per_node
    uuids = [gpu.uuid for gpu in report.gpus or () if gpu.uuid is not None]
    measures = samples[node].of_rank(uuids, report.windows or ())
    return RankRecord(
        rank=report.rank,
        node=node,
        pid=report.pid,
        binding=report.binding,
        gpus=report.gpus,
        windows=report.windows,
        energy=tuple(gpu.energy for gpu in measures),
        gpu_conditions=tuple(gpu.conditions for gpu in measures),
        device_memory_used_bytes=tuple(gpu.memory_used_bytes for gpu in measures),
        observed=report.observed,
        operations=report.operations,
        intraop_threads=report.intraop_threads,
    )


def _nodes(scratch: Path, parameters: JobParameters, reports: Iterable[RankReport]) -> list[NodeRecord]:
    """Return the record of every node: its name and ranks, and host and hardware as its first reporting rank has them.

    Host and hardware are None if no rank of the node left a report. A node that did not write its name is named
    "node 3", by its index.
    """
    first_report = {report.rank // parameters.ranks_per_node: report for report in reversed(list(reports))}
    records = []
    for node in range(parameters.nodes):
        file = scratch / node_file(NODE, node)
        first_rank = node * parameters.ranks_per_node
        report = first_report.get(node)
        records.append(
            NodeRecord(
                name=read_json(file)["name"] if file.exists() else f"node {node}",
                host=report.host if report else None,
                hardware=report.hardware if report else None,
                ranks=tuple(range(first_rank, first_rank + parameters.ranks_per_node)),
            )
        )
    return records


def _gpu_samples(scratch: Path, folder: Path, nodes: int) -> list[GpuSamples]:
    """Move the samples of every node's GPUs into the run directory, and read them.

    A node without such a file, as in a job on CPUs, has an empty `GpuSamples`.
    """
    names = node_files(GPU_SAMPLES, nodes)
    for name in names:
        if (scratch / name).exists():
            shutil.move(scratch / name, folder / name)
    return [GpuSamples.read(folder / name) for name in names]


def _conditions(scratch: Path, nodes: int, ranks: Iterable[RankRecord]) -> list[NodeConditions | None]:
    """Return the CPU use of other processes on every node; None for a node whose CPUs were not sampled.

    `measured_steps` of a node covers the measured windows of its ranks.
    """
    windows: dict[int, list[tuple[float, float]]] = {node: [] for node in range(nodes)}
    for rank in ranks:
        if rank.node is not None:
            windows[rank.node] += rank.windows or ()
    files = [scratch / name for name in node_files(CPU_SAMPLES, nodes)]
    return [host_record(file, windows[node]) if file.exists() else None for node, file in enumerate(files)]


def join_tables(scratch: Path, folder: Path, ranks: int) -> None:
    """Write steps.csv from the steps of all ranks, in the order of the ranks, and epochs.csv from those of rank 0.

    A rank without such a table adds no rows. A table without rows has a header.
    """
    steps = [scratch / rank_file(STEPS, rank) for rank in range(ranks)]
    write_csv(folder / STEPS, STEP_COLUMNS, _rows(steps))
    write_csv(folder / EPOCHS, EPOCH_COLUMNS, _rows([scratch / rank_file(EPOCHS, 0)]))


def _rows(parts: Iterable[Path]) -> Iterator[dict[str, str]]:
    for part in parts:
        if part.exists():
            with part.open(newline="", encoding="utf-8") as source:
                yield from csv.DictReader(source)
