"""Runs that differ only in their number of devices, and what is predicted and checked of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
from pydantic import ValidationError

from multicard.analysis.bottlenecks.bottlenecks import peak_memory
from multicard.analysis.choice.learning import values_of
from multicard.analysis.evidence import Configuration
from multicard.analysis.machine.limits import MachineLimits
from multicard.analysis.scaling.alpha_beta import AlphaBeta
from multicard.analysis.scaling.network import Network
from multicard.analysis.scaling.points import Point
from multicard.analysis.scaling.prediction import Check, Prediction, checks, predict
from multicard.analysis.scaling.speedup import SAME_WORK
from multicard.analysis.statistics import Interval, scaled
from multicard.core.text import counted
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import JobParameters, nested
from multicard.experiment.workload import Traffic

ALIKE_BUT_FOR = ("devices", "nodes")
HAS_EVERYTHING = Machine(cpus=1, gpus=8, profilers=()).hypothetical()  # what is predicted need not run here


@dataclass(frozen=True)
class Forecast:
    """What is predicted of a series for a number of devices.

    Attributes
    ----------
    throughput
        Units of work per second; None where the work of a step on so many devices is not known.
    speedup
        Over the run on one device; None without one. Its interval has the scatter of that run too, on one node.
    measured
        Numbers of devices, or of nodes, that it is predicted from.
    memory_bytes
        Peak of a device.
    """

    devices: int
    nodes: int
    prediction: Prediction
    throughput: Interval | None = None
    speedup: Interval | None = None
    memory_bytes: float | None = None
    measured: tuple[int, ...] = ()

    @property
    def efficiency(self) -> Interval | None:
        """Speed-up per device."""
        return scaled(self.speedup, 1 / self.devices) if self.speedup else None


@dataclass(frozen=True)
class Series:
    """Configurations that differ in the number of devices, on one kind of machine.

    Attributes
    ----------
    configurations
        With a completed run, by (nodes, devices).
    batches
        Further ones on one device that differ in their batch.
    traced
        Shares of the trace, by run (`per_run.trace_shares`).
    links
        α and β of all-reduces on this machine by devices; empty where they were not measured.
    collectives
        Those of a step by a trace, where the workload does not know them.
    elsewhere
        Why other numbers of devices are no part of it.
    limits
        Records of its kind of machine and of device, the newest first.
    """

    configurations: Mapping[tuple[int, int], Configuration]
    batches: Sequence[Configuration]
    traced: Mapping[str, Mapping[str, Any]]
    links: Mapping[int, AlphaBeta]
    collectives: Sequence[Traffic] | None
    elsewhere: str | None
    limits: Sequence[MachineLimits] = ()

    @cached_property
    def of(self) -> Configuration:
        """The configuration that names it: on the most devices."""
        return self.configurations[max(self.configurations)]

    @property
    def words(self) -> str:
        """What its runs have in common."""
        return self.of.words(without=ALIKE_BUT_FOR)

    @property
    def headline(self) -> str:
        """What most configurations differ in."""
        return self.of.words(without=ALIKE_BUT_FOR, in_short=True)

    def points(self, nodes: int, of_node: int | None = None) -> list[Point]:
        """Runs as what is predicted over: devices of one node, or nodes with `of_node` devices each."""
        found = []
        for (own, devices), each in self.configurations.items():
            if nodes == 1 and own == 1:
                found.append(self._point(each, devices, devices))
            elif nodes > 1 and devices == own * (of_node or 0):
                found.append(self._point(each, own, devices // own))
        if nodes == 1:
            found += [self._point(each, 1, 1) for each in self.batches]
        return [each for each in found if each is not None]

    def network(self, nodes: int) -> Network | None:
        """What is known of communication between the devices of a node."""
        if self._no_network(nodes):
            return None
        smallest = self.configurations[min(self.configurations)]
        hideable = smallest.values("backward_s")
        return Network(self.links, lambda devices: self._traffic(devices) or [], median(hideable) if hideable else None)

    @cached_property
    def checks(self) -> list[tuple[int, int, Check]]:
        """Each measured number of devices, and of nodes, as predicted from the smaller ones."""
        of_one_node = checks(self.points(1), self.network(1), self._no_network(1), None)
        found = [(each.predicted.count, 1, each) for each in of_one_node]
        for of_node in sorted({devices // own for own, devices in self.configurations}):
            over = self.points(2, of_node)
            found += [
                (each.predicted.count * of_node, each.predicted.count, each)
                for each in checks(over, None, self._no_network(2), None)
            ]
        return found

    def forecast(self, devices: int, nodes: int = 1) -> Forecast:
        """Predict a number of devices."""
        reason = self._refusal(devices, nodes)
        if reason:
            return Forecast(devices, nodes, Prediction(devices, None, reason=reason))
        of_node = devices // nodes
        points, network = self.points(nodes, of_node), self.network(nodes)
        samples = self._samples(devices)
        if samples is None:
            return Forecast(devices, nodes, Prediction(devices, None, reason=self._no_samples))
        count, unknown = devices if nodes == 1 else nodes, self._no_network(nodes)
        computing = self._computing_share if nodes == 1 else None
        predicted = predict(points, count, of_node, samples, network, unknown, None, computing)
        if predicted.step_s is None:
            why = "; ".join(each for each in (predicted.reason, self.elsewhere) if each)
            return Forecast(devices, nodes, Prediction(devices, None, reason=why))
        caveats = [*predicted.caveats]
        there = self._gpus_of_node
        if there is not None and of_node > there:
            caveats.append(f"more GPUs on one node than runs were recorded with, where {there} could be used")
        if computing is not None:
            caveats.append(
                "no run on one device: computing is the smallest run less the exposed communication of its trace"
            )
        predicted = replace(predicted, caveats=tuple(caveats))
        rate, speedup = self._rate(predicted.step_s, devices), None
        alone = self.configurations.get((1, 1))
        if rate and alone and (work := self._work(alone)):
            # Between nodes the first point is no run on one device, whose scatter is then left out.
            of_step = rate.value * predicted.step_s.value / work
            speedup = scaled(predicted.gain, of_step) if nodes == 1 else scaled(rate, 1 / alone.mean(alone.rate))
        measured = tuple(sorted({each.count for each in points}))
        return Forecast(devices, nodes, predicted, rate, speedup, self._memory(devices), measured)

    # The work of a step -----------------------------------------------------------------------------------------------

    @property
    def _no_samples(self) -> str:
        """Why it is not known what a device computes in a step on other numbers of devices."""
        known = [samples_of_device(each) is not None for each in self.configurations.values()]
        if not any(known):
            return "the samples of a step were not counted"
        if sum(known) > 1:
            return "the samples of a device in a step neither stay nor shrink with the number of devices"
        return "whether devices share a batch or have one each is not known: run another number of devices"

    def _samples(self, devices: int) -> float | None:
        """Samples of a device on so many; None where that cannot be told."""
        known = {count: each for (_, count), one in self.configurations.items() if (each := samples_of_device(one))}
        if len(known) != 1:
            return _on_devices(known, devices)
        [(count, samples)] = known.items()
        kind = self.of["scaling"] or ("weak" if self.of.workload.scales_weakly else None)
        return {"weak": samples, "strong": samples * count / devices}.get(kind)

    def _rate(self, step_s: Interval, devices: int) -> Interval | None:
        """Work per second: that of a step, which stays or grows with the devices, over its time."""
        work = {count: own / count for (_, count), each in self.configurations.items() if (own := self._work(each))}
        if len(work) != 1:
            of_device = _on_devices(work, devices)
        else:
            [(count, own)] = work.items()
            now, then, samples = self._parameters(count), self._parameters(devices), self._samples(devices)
            if now is None or then is None or samples is None:
                return None
            share, later = (self.of.workload.distinct_share(_as_record(each)) for each in (now, then))
            of_device = own * samples / (samples_of_device(self.of) or samples) * later / share
        if of_device is None:
            return None
        value, low, high = (of_device * devices / end for end in (step_s.value, step_s.high, step_s.low))
        return Interval(value, low, high, step_s.repeats, coverage=step_s.coverage)

    def _work(self, configuration: Configuration) -> float | None:
        """Units of work of a step; None where that is not known."""
        rate, seconds = configuration.mean(configuration.rate), configuration.mean("iteration_time_s")
        return rate * seconds if rate and seconds else None

    def _memory(self, devices: int) -> float | None:
        """Peak of a device: of the most devices that were measured, and what the workload says that others change."""
        (_, most), nearest = max(self.configurations.items())[0], self.of
        used, p = peak_memory(nearest), self._parameters(most)
        if not used:
            return None
        change = None if p is None else nearest.workload.memory_change(p, devices, values_of(nearest))
        return max(used.values()) + (change or 0.0)

    # What may be asked ------------------------------------------------------------------------------------------------

    def _refusal(self, devices: int, nodes: int) -> str | None:
        if devices % nodes:
            return f"{counted(devices, 'device')} cannot be shared equally by {counted(nodes, 'node')}"
        if (nodes, devices) in self.configurations:
            step_s = self.configurations[nodes, devices].mean("iteration_time_s")
            return f"measured: {1000 * step_s:.3g} ms per step" if step_s else "measured"
        p = self._parameters(devices, nodes)
        refused = None if p is None else self.of.workload.unsupported_reason(p, HAS_EVERYTHING, {})
        if refused:
            return refused
        cpus, threads = self.of.provenance.usable_cpus, self.of["threads"] or 1
        if self.of["device"] == "cpu" and cpus and devices // nodes * threads > cpus:
            of_each = f" of {threads} threads" if threads > 1 else ""
            return (
                f"processes{of_each} would compete for the machine's {counted(cpus, 'CPU')}, which slows computing down"
            )
        of_node = devices // nodes
        measured = [own for own, count in self.configurations if count == own * of_node]
        if nodes > 1 and max(measured, default=1) == 1:
            where = "two nodes" if measured else "one and on two nodes"
            return f"the network between nodes is not measured: run {counted(of_node, 'device')} per node on {where}"
        if nodes > 1 and len(measured) < 2:
            return (
                f"runs with {counted(of_node, 'device')} per node on one number of nodes only: run one node, or "
                "another number"
            )
        return None

    @property
    def _gpus_of_node(self) -> int | None:
        """Most GPUs of a node that a run or a record of the machine could use; None where none is recorded."""
        if self.of["device"] != "cuda":
            return None
        of_runs = [run.provenance.gpu_count for each in self.configurations.values() for run in each.completed]
        known = [*filter(None, of_runs), *(len((each.hardware or {}).get("gpus") or []) for each in self.limits)]
        return max([*known, *(count // own for own, count in self.configurations)]) if any(known) else None

    def _no_network(self, nodes: int) -> str | None:
        """Why the time of communication is not known; None where it is."""
        if nodes > 1:
            return "no α–β of the network between nodes"
        if not self.links:
            return "no α–β of this machine (see multicard doctor --measure)"
        return None if self._traffic(2) is not None else "the bytes of a step are not known (a trace has them)"

    def _parameters(self, devices: int, nodes: int | None = None) -> JobParameters | None:
        """Parameters on so many devices; None where they are not complete, as of a table that was cut."""
        fields = self.of.workload.parameters.model_fields
        values = {name: value for name, value in self.of.parameters.items() if value is not None}
        given = {name: value for name, value in nested(values).items() if name in fields}
        if isinstance(given.get("command"), str):
            return None
        try:
            return self.of.workload.parameters.model_validate(
                given | {"devices": devices} | ({"nodes": nodes} if nodes else {})
            )
        except ValidationError:
            return None

    # What was measured ------------------------------------------------------------------------------------------------

    def _point(self, configuration: Configuration, count: int, local: int) -> Point | None:
        steps, samples = configuration.blocks("iteration_time_s"), samples_of_device(configuration)
        if not steps or samples is None:
            return None
        waited = self._waited(configuration, steps)
        return Point(count, local, samples, tuple(steps.values()), tuple(waited.values()))

    def _waited(self, configuration: Configuration, steps: Mapping[int, float]) -> dict[int, float]:
        """Wait for data of each repeat, not more than a step takes; none where the process that computes loads."""
        p = self._parameters(configuration["devices"])
        in_step = p is not None and configuration.workload.loads_in_step(p)
        waited = {} if in_step else configuration.blocks("data_s")
        return {repeat: min(waited.get(repeat, 0.0), seconds) for repeat, seconds in steps.items()}

    @cached_property
    def _computing_share(self) -> float | None:
        """Share of the smallest run that is not exposed communication, by its trace; None with a run on one device."""
        (nodes, _), smallest = min(self.configurations.items(), key=lambda one: one[0])
        shares = [self.traced.get(run.run, {}).get("exposed communication") for run in smallest.completed]
        known = [share for share in shares if is_known(share)]
        return None if (1, 1) in self.configurations or nodes > 1 or not known else 1 - median(known)

    def _traffic(self, devices: int) -> Sequence[Traffic] | None:
        p = self._parameters(devices)
        known = None if p is None else self.of.workload.traffic(p, values_of(self.of))
        return self.collectives if known is None else known


def checked_line(found: Sequence[Check]) -> str:
    """Whether predictions were checked on the machine of the runs, in a sentence."""
    errors = [abs(each.error) for each in found if each.error is not None]
    if not errors:
        return "Never checked on this machine: no number of devices was measured that smaller ones predict."
    judged = [each.inside for each in found if each.inside is not None]
    inside = f", the measured time inside the interval in {sum(judged)} of {len(judged)}" if judged else ""
    return (
        f"Checked on this machine: {counted(len(errors), 'prediction')} of measured runs, error "
        f"{100 * median(errors):.1f}% in the median, {100 * max(errors):.1f}% at most{inside}."
    )


def samples_of_device(configuration: Configuration) -> float | None:
    """Samples, or without their number units of work, that a device computes in a step, median over repeats."""
    for rate in ("processed_samples_per_s", configuration.rate):
        rates, seconds = configuration.blocks(rate), configuration.blocks("iteration_time_s")
        known = [rates[repeat] * seconds[repeat] for repeat in rates if repeat in seconds]
        if known:
            return round(median(known) / configuration["devices"], 6)
    return None


def _on_devices(known: Mapping[int, float], devices: int) -> float | None:
    """What a device has of a step on so many, if it stays as it is, or all together do; None where neither does."""
    if not known:
        return None
    most = max(known)
    if all(np.isclose(each, known[most], rtol=SAME_WORK) for each in known.values()):
        return known[most]
    if all(np.isclose(each * count, known[most] * most, rtol=SAME_WORK) for count, each in known.items()):
        return known[most] * most / devices
    return None


def _as_record(p: JobParameters) -> dict[str, Any]:
    return {"parameters": p.model_dump(), "ranks": []}


def is_known(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)
