"""Whether the nodes that a profile names take the jobs of an experiment's runs: their time, and their memory."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from multicard.doctor.checks import Check
from multicard.doctor.slurm import Nodes, cluster_of, of_rule
from multicard.experiment.cluster import Cluster, machine_for
from multicard.experiment.config import Experiment
from multicard.experiment.resources import AROUND_MIN, memory_of_attempt_mb
from multicard.experiment.runs import Run

RULE = "launch_run"


def checks(
    profile: dict[str, Any], nodes: list[Nodes], experiment: Experiment, runs: Mapping[str, Run]
) -> Iterator[Check]:
    """Hold the most that a run asks for against the nodes of the profile's partitions that are up."""
    usable = [node for node in nodes if node.up]
    if not usable:
        return
    yield _time(profile, usable, experiment)
    try:
        cluster = Cluster.model_validate(cluster_of(profile))
    except ValidationError:
        return  # Snakemake says what is wrong with it, before it starts anything
    there = machine_for(cluster)
    sent = [run for run in runs.values() if run.unsupported_reason(there) is None]
    if sent:
        yield _memory(profile, usable, sent, cluster)


def _time(profile: dict[str, Any], nodes: list[Nodes], experiment: Experiment) -> Check:
    asked = of_rule(profile, RULE, "runtime") or experiment.time_limit_min + AROUND_MIN
    longest = max(node.limit_min for node in nodes)
    found = f"a run asks for {asked} min"
    if asked <= longest:
        return Check("profile: time", found)
    do = f"time_limit_min in the configuration, at most {max(int(longest) - AROUND_MIN, 0)}; or another partition"
    return Check("profile: time", f"{found}, its partitions give {longest:g}: it would never begin", "wrong", do)


def _memory(profile: dict[str, Any], nodes: list[Nodes], runs: list[Run], cluster: Cluster) -> Check:
    largest = max(runs, key=lambda run: memory_of_attempt_mb(run, 1, cluster))
    retries = str(profile.get("retries", 0))
    attempts = 1 + (int(retries) if retries.isdecimal() else 0)
    fixed = of_rule(profile, RULE, "mem_mb")
    first, last = (fixed or memory_of_attempt_mb(largest, attempt, cluster) for attempt in (1, attempts))
    have = max(node.memory_mb for node in nodes)
    found = f"a run asks for up to {first} MB of a node; they have {have}"
    if first > have:
        do = f"smaller runs ({largest.id} asks for most), another partition, or mem_mb of {RULE} under set-resources"
        return Check("profile: memory", f"{found}: Slurm refuses it", "wrong", do)
    if last > have:
        found += f"; submitted again after a loss, it asks for {last}"
        return Check("profile: memory", found, "note", f"memory_per_node_gb: {have // 1000} under config: cluster:")
    return Check("profile: memory", found)
