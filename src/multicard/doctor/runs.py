"""An experiment's runs: which of them can run, and whether the partitions of a profile take their jobs."""

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from multicard.archive.matrix import Matrix
from multicard.core.system import ask
from multicard.doctor.checks import Check
from multicard.doctor.slurm import Nodes, mapping_of, of_rule, partitions_here
from multicard.experiment.resources import (
    AROUND_MIN,
    ATTEMPTS,
    STEPS,
    memory_of_attempt_mb,
    step_memory_mb,
    step_minutes,
)

MODULES_LIMIT_S = 60.0
SHOWN = 3
LOADED = "multicard: loaded"
RUN = "launch_run"
ALL = 0  # of memory: whatever a node has


@dataclass(frozen=True)
class Request:
    """What the jobs of a rule, or of a group of rules, ask for at most: in the first attempt and in the last."""

    name: str
    partition: str | None
    minutes: tuple[int, int]
    memory_mb: tuple[int, int]
    remedy: str = ""  # for memory, where the largest job can be named


Held = list[tuple[Request, list[Nodes]]]  # requests with the nodes of their partitions


def checks(matrix: Matrix, slurm: bool) -> list[Check]:
    """Count the runs that can run; `slurm`: where they cannot run here, jobs can be handed to a Slurm."""
    experiment, lost = matrix.experiment, matrix.not_runnable()
    where = "on the cluster" if experiment.cluster else "here"
    found = f"{len(matrix.runs) - len(lost)} of {len(matrix.runs)} can run {where}"
    if matrix.recorded.archives:
        found += f" or are recorded ({len(matrix.recorded.archives)})"
    counts = Counter(lost.values()).most_common()
    found += "".join(f"; {count}: {reason}" for reason, count in counts[:SHOWN])
    if len(counts) > SHOWN:
        found += f"; {sum(count for _, count in counts[SHOWN:])} for other reasons (multicard run --dry-run)"
    verdict, do = "ok", ""
    if any(matrix.runs[run].parameters.device == "cuda" for run in lost) and matrix.machine.gpus == 0:
        verdict, do = "error", "run it where GPUs are"
        if slurm and not experiment.cluster:
            verdict, do = "warning", "multicard doctor --profile slurm checks them for the cluster's nodes"
    elif lost:
        verdict, do = "warning", "multicard run --dry-run lists each with its reason"
    return [Check("runs", found, verdict, do), *_modules(experiment.modules)]


def on_nodes(
    profile: dict[str, Any], partitions: Mapping[str, list[Nodes]], matrix: Matrix | None = None
) -> Iterator[Check]:
    """Compare what every rule and group of the profile asks for with its partitions' limits.

    Parameters
    ----------
    matrix
        Runs planned for the profile's cluster; without it, only the steps after the runs are looked at.
    """
    requests = [*_run_requests(profile, matrix), *_step_requests(profile, matrix)]
    held = [(request, _usable(request.partition, partitions)) for request in requests]
    held = [(request, nodes) for request, nodes in held if nodes]
    if held:
        yield _time(held)
        yield _memory(held)


def refused(profile: dict[str, Any], matrix: Matrix) -> dict[str, str]:
    """Runs that ask for more memory than a node of their partition has, each with what Slurm refuses."""
    fixed = of_rule(profile, RUN, "mem_mb")
    most = max((node.memory_mb for node in _usable(_partition(profile, RUN), partitions_here())), default=None)
    if most is None or (matrix.experiment.timing == "exclusive" and not fixed):
        return {}
    asked = {run: fixed or memory_of_attempt_mb(matrix.runs[run], 1, matrix.experiment) for run in matrix.planned()}
    return {run: f"Slurm refuses it: asks for {mb} MB, a node has {most}" for run, mb in asked.items() if mb > most}


def _run_requests(profile: dict[str, Any], matrix: Matrix | None) -> Iterator[Request]:
    runs = [matrix.runs[run] for run in matrix.planned()] if matrix else []
    if not runs:
        return
    minutes = of_rule(profile, RUN, "runtime") or matrix.experiment.time_limit_min + AROUND_MIN
    experiment = matrix.experiment
    largest = max(runs, key=lambda run: memory_of_attempt_mb(run, 1, experiment))
    fixed = of_rule(profile, RUN, "mem_mb")
    asked = [fixed or memory_of_attempt_mb(largest, attempt, experiment) for attempt in (1, _attempts(profile))]
    if experiment.timing == "exclusive" and not fixed:
        asked = [ALL, ALL]
    remedy = f"smaller runs ({largest.id} asks for most)"
    yield Request(RUN, _partition(profile, RUN), (minutes, minutes), (asked[0], asked[1]), remedy)


def _step_requests(profile: dict[str, Any], matrix: Matrix | None) -> Iterator[Request]:
    """Requests of the steps after the runs; a group's job runs its stages one after the other."""
    cluster = matrix.experiment.cluster if matrix else None
    groups = mapping_of(profile, "groups")
    components = mapping_of(profile, "group-components")
    members: dict[str, list[str]] = {}
    for rule in STEPS:
        members.setdefault(str(groups.get(rule, rule)), []).append(rule)
    for name, rules in members.items():
        together = int(components.get(name, 1))
        minutes, memory = [], []
        for attempt in (1, _attempts(profile)):
            stages: dict[int, list[tuple[int, int]]] = {}
            for rule in rules:
                asked = (
                    of_rule(profile, rule, "runtime") or step_minutes(rule, attempt),
                    of_rule(profile, rule, "mem_mb") or step_memory_mb(rule, attempt, cluster),
                )
                stages.setdefault(STEPS[rule].stage, []).append(asked)
            minutes.append(sum(max(each for each, _ in stage) for stage in stages.values()))
            memory.append(max(sum(each for _, each in stage) for stage in stages.values()) * together)
        yield Request(name, _partition(profile, rules[0]), (minutes[0], minutes[1]), (memory[0], memory[1]))


def _attempts(profile: dict[str, Any]) -> int:
    """Attempts of a job that do its work."""
    retries = str(profile.get("retries", 0))
    return min(1 + (int(retries) if retries.isdecimal() else 0), ATTEMPTS)


def _partition(profile: dict[str, Any], rule: str) -> str | None:
    rules = mapping_of(profile, "set-resources").get(rule)
    own = rules.get("slurm_partition") if isinstance(rules, dict) else None
    return own or mapping_of(profile, "default-resources").get("slurm_partition")


def _usable(partition: str | None, partitions: Mapping[str, list[Nodes]]) -> list[Nodes]:
    """Nodes that are up, of the named partitions, else of all."""
    names = str(partition).strip("'\" ").split(",") if partition else list(partitions)
    return [node for name in names for node in partitions.get(name, []) if node.up]


def _beyond(
    held: Held,
    asked: Callable[[Request], tuple[int, int]],
    limit: Callable[[Nodes], float],
) -> tuple[int, Request, float] | None:
    """The first request that is beyond its partition's limit: its attempt (0 or 1, the last), itself, and the limit."""
    for attempt in (0, 1):
        for request, nodes in held:
            largest = max(map(limit, nodes))
            if asked(request)[attempt] > largest:
                return attempt, request, largest
    return None


def _time(held: Held) -> Check:
    found = _beyond(held, lambda request: request.minutes, lambda node: node.limit_min)
    if found is None:
        asked = ", ".join(f"{request.name} {request.minutes[0]}" for request, _ in held)
        return Check("profile: time", f"minutes asked for: {asked}")
    attempt, request, longest = found
    do = "smaller runtime under set-resources, or another partition"
    if request.name == RUN:
        do = f"time_limit_min in the configuration, at most {max(int(longest) - AROUND_MIN, 0)}; or another partition"
    again = "submitted again, " if attempt else ""
    [limited_by] = {node.limited_by for node in dict(held)[request] if node.limit_min == longest}
    says = f"{request.name} asks for {request.minutes[attempt]} min, {limited_by} allows {longest:g}: "
    return Check("profile: time", f"{says}{again}the job would stay pending", "warning" if attempt else "error", do)


def _memory(held: Held) -> Check:
    found = _beyond(held, lambda request: request.memory_mb, lambda node: node.memory_mb)
    if found is None:
        asked = ", ".join(f"{request.name} {request.memory_mb[0] or 'all of a node'}" for request, _ in held)
        return Check("profile: memory", f"MB asked for: {asked}")
    attempt, request, have = found
    says = f"{request.name} asks for up to {request.memory_mb[attempt]} MB of a node, which has {have}"
    if attempt:
        do = f"memory_per_node_gb: {have // 1000} under config: cluster:"
        return Check("profile: memory", f"submitted again after a failure, {says}", "warning", do)
    do = "another partition, or mem_mb under set-resources"
    do = f"{request.remedy}, {do}" if request.remedy else do
    return Check("profile: memory", f"{says}: Slurm refuses it", "error", do)


def _modules(names: list[str]) -> list[Check]:
    """Load the modules as Snakemake does with --sdm env-modules, which continues where loading fails."""
    if not names:
        return []
    command = f"module purge && module load {shlex.join(names)} && echo {shlex.quote(LOADED)}"
    answer = ask(["bash", "-c", command], MODULES_LIMIT_S, dict(os.environ))
    if LOADED in answer.lines:
        return [Check("modules", f"can be loaded: {', '.join(names)}")]
    problem = answer.problem or "module load failed"
    do = "modules: in the configuration; `module avail` lists those that exist"
    return [Check("modules", f"cannot be loaded: {problem.removeprefix('bash ')}", "error", do)]
