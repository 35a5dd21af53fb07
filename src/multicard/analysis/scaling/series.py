"""Runs that differ only in their number of devices: what is predicted of others, and how predictions turned out."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from multicard.analysis.evidence import Configuration, Evidence
from multicard.analysis.scaling.prediction import Check, Point, Prediction, checks, predict
from multicard.analysis.scaling.speedup import SAME_WORK
from multicard.core.text import counted, listed
from multicard.experiment.machine import Machine
from multicard.runs.parameters import JobParameters, nested
from multicard.stats.interval import Interval

ALIKE_BUT_FOR = ("devices", "nodes")
HAS_EVERYTHING = Machine(cpus=1, gpus=8, profilers=()).hypothetical()  # what is predicted need not run here
NO_SAMPLES = "the samples of a device in a step are not known, or neither stay nor shrink with the number of devices"


@dataclass(frozen=True)
class Series:
    """Configurations with a completed run that differ in the number of devices, by that, on one kind of machine."""

    configurations: Mapping[int, Configuration]

    @cached_property
    def of(self) -> Configuration:
        """The configuration that names it: on the most devices."""
        return self.configurations[max(self.configurations)]

    @property
    def words(self) -> str:
        """What its runs have in common."""
        return self.of.words(without=ALIKE_BUT_FOR)

    @cached_property
    def points(self) -> list[Point]:
        """Its runs as what is predicted from."""
        found = []
        for devices, each in sorted(self.configurations.items()):
            steps, samples = each.blocks("iteration_time_s"), samples_of_device(each)
            if steps and samples is not None:
                p = self._parameters(devices)
                in_step = p is not None and each.workload.loads_in_step(p)  # where the process that computes loads
                waits = {} if in_step else each.blocks("data_s")
                waited = [min(waits.get(repeat, 0.0), seconds) for repeat, seconds in steps.items()]
                local = devices // (each["nodes"] or 1)
                found.append(Point(devices, local, samples, tuple(steps.values()), tuple(waited)))
        return found

    @cached_property
    def checks(self) -> list[Check]:
        """Each measured number of devices as predicted from the smaller ones."""
        return checks(self.points)

    def forecast(self, devices: int) -> Prediction:
        """Predict a number of devices."""
        reason = self._refusal(devices)
        samples = _on_devices({each.count: each.samples for each in self.points}, devices)
        if reason or samples is None:
            return Prediction(devices, None, reason=reason or NO_SAMPLES)
        spans = any((each["nodes"] or 1) > 1 for each in self.configurations.values())
        local = min(devices, max(each.local for each in self.points)) if spans else devices
        predicted = predict(self.points, devices, local, samples)
        if predicted.step_s is None:
            return predicted
        runs = [run for each in self.configurations.values() for run in each.completed]
        gpus = [count for run in runs if (count := run.provenance.gpu_count)]
        if not spans and gpus and self.of["device"] == "cuda" and devices > max(*gpus, *self.configurations):
            caveat = f"more GPUs than the runs saw of their node, {max(gpus)}: a network between nodes was not measured"
            predicted = replace(predicted, caveats=(*predicted.caveats, caveat))
        work = {count: own / count for count, each in self.configurations.items() if (own := _work(each))}
        of_device, speedup, rate = _on_devices(work, devices), None, None
        if of_device is not None:
            of_step = of_device * devices
            rate = predicted.step_s.map(lambda seconds: of_step / seconds)
            if 1 in work:
                speedup = predicted.gain and predicted.gain.map(lambda times: times * of_step / work[1])
        measured = tuple(each.count for each in self.points)
        return replace(predicted, throughput=rate, speedup=speedup, measured=measured)

    def _refusal(self, devices: int) -> str | None:
        """Why a number of devices is not predicted."""
        if devices in self.configurations:
            step_s = self.configurations[devices].mean("iteration_time_s")
            return f"measured: {1000 * step_s:.3g} ms per step" if step_s else "measured"
        p = self._parameters(devices)
        refused = None if p is None else self.of.workload.unsupported_reason(p, HAS_EVERYTHING, {})
        cpus, threads = self.of.provenance.usable_cpus, self.of["threads"] or 1
        if not refused and self.of["device"] == "cpu" and cpus and devices * threads > cpus:
            return f"processes would compete for the machine's {counted(cpus, 'CPU')}, which slows computing down"
        return refused

    def _parameters(self, devices: int) -> JobParameters | None:
        """Parameters on so many devices of a node; None where they are not complete, as of a table that was cut."""
        fields = self.of.workload.parameters.model_fields
        values = {name: value for name, value in self.of.parameters.items() if value is not None}
        given = {name: value for name, value in nested(values).items() if name in fields}
        if isinstance(given.get("command"), str):
            return None
        try:
            return self.of.workload.parameters.model_validate(given | {"devices": devices, "nodes": 1})
        except ValidationError:
            return None


def series(evidence: Evidence) -> list[Series]:
    """Sort configurations into series, those on one device into that of each strategy whose baseline they are."""
    groups: dict[Any, dict[int, Configuration]] = defaultdict(dict)
    for each in evidence.configurations:
        if each.completed:
            work = each.workload
            skip = {*ALIKE_BUT_FOR, work.method}
            shared = tuple((name, value) for name, value in each.parameters.items() if name not in skip)
            # Whatever part of the machine a job was given, and whichever profiler observed it.
            place = each.provenance.kind, each.provenance.software
            groups[shared, place, each[work.method]].setdefault(each["devices"], each)
    found, bases = {}, set()
    for (shared, place, method), own in groups.items():
        alike = dict(own)
        for base in next(iter(own.values())).workload.baselines(method) if max(own) > 1 else ():
            if base != method and 1 in groups.get((shared, place, base), {}):
                alike.setdefault(1, groups[shared, place, base][1])
                bases.add((shared, place, base))
                break
        found[shared, place, method] = Series(alike)
    return [each for key, each in found.items() if key not in bases or len(each.configurations) > 1]


def checked_line(found: Sequence[Check]) -> str:
    """Whether predictions were checked on the machine of the runs, in a sentence."""
    errors = [abs(each.error) for each in found if each.error is not None]
    if not errors:
        return "Never checked on this machine: no number of devices was measured that smaller ones predict."
    inside = sum(bool(each.inside) for each in found)
    return (
        f"Checked on this machine: {counted(len(errors), 'prediction')} of measured runs, error "
        f"{100 * median(errors):.1f}% in the median, {100 * max(errors):.1f}% at most, the measured time inside the "
        f"interval in {inside} of {len(errors)}."
    )


def samples_of_device(configuration: Configuration) -> float | None:
    """Samples, or without their number units of work, that a device computes in a step, median over repeats."""
    for rate in ("processed_samples_per_s", configuration.rate):
        rates, seconds = configuration.blocks(rate), configuration.blocks("iteration_time_s")
        known = [rates[repeat] * seconds[repeat] for repeat in rates if repeat in seconds]
        if known:
            return round(median(known) / configuration["devices"], 6)
    return None


def _work(configuration: Configuration) -> float | None:
    """Units of work of a step; None where that is not known."""
    rate, seconds = configuration.mean(configuration.rate), configuration.mean("iteration_time_s")
    return rate * seconds if rate and seconds else None


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


# As tables, with units in the names of columns ------------------------------------------------------------------------

ABOUT = ("configuration", "machine", "versions", "device", "devices")
VALUES = ("step_time_s", "throughput_per_s", "speedup")
PREDICTED = (
    *ABOUT, *(f"{name}{end}" for name in VALUES for end in ("", "_low", "_high")), "measured", "caveats", "reason",
)  # fmt: skip
CHECKED = (*ABOUT, "predicted_s", "predicted_s_low", "predicted_s_high", "measured_s", "prediction_error", "inside")


def predictions_table(found: Sequence[Series], devices: Sequence[int]) -> pd.DataFrame:
    """A row for each series and number of devices; `reason` where nothing is predicted."""
    rows = []
    for each in found:
        for count in devices:
            predicted = each.forecast(count)
            rows.append(
                (
                    *_about(each, count),
                    *(end for one in (predicted.step_s, predicted.throughput, predicted.speedup) for end in _ends(one)),
                    listed([str(each) for each in predicted.measured]), "; ".join(predicted.caveats), predicted.reason,
                )
            )  # fmt: skip
    return pd.DataFrame(rows, columns=PREDICTED)


def checks_table(found: Sequence[Series]) -> pd.DataFrame:
    """A row for each measured number of devices that smaller ones predict."""
    rows = [
        (
            *_about(each, check.predicted.count), *_ends(check.predicted.step_s), check.measured.value, check.error,
            check.inside,
        )
        for each in found
        for check in each.checks
        if check.predicted.step_s
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=CHECKED)


def _about(each: Series, devices: int) -> tuple[Any, ...]:
    place = each.of.provenance
    where = place.machine or "machine unknown", place.software or "versions unknown"
    return each.words, *where, each.of["device"], devices


def _ends(interval: Interval | None) -> tuple[float | None, ...]:
    return tuple(getattr(interval, name, None) for name in ("value", "low", "high"))
