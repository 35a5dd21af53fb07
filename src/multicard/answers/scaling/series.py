"""Series: configurations that differ only in their number of devices, and predictions for other numbers of devices."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import ValidationError

from multicard.answers.scaling.prediction import Prediction, PredictionCheck, checks, predict
from multicard.answers.scaling.speedup import SCALE
from multicard.answers.scaling.step_model import ScalingPoint
from multicard.answers.scaling.work import is_same_work, samples_per_device, work_of_step
from multicard.core.text import counted
from multicard.programs.machine import Machine
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.runs.parameters import JobParameters, nested

# A predicted configuration need not be able to run here, so whether it is supported is checked for this machine.
HAS_EVERYTHING = Machine(cpus=1, gpus=8, profilers=()).hypothetical()


@dataclass(frozen=True)
class Series:
    """Configurations with a completed run on one kind of machine, by their number of devices.

    Apart from devices and nodes they have the same parameters. Only the one on one device may have another method, such
    as the strategy `single`.
    """

    configurations: Mapping[int, Configuration]

    @cached_property
    def largest(self) -> Configuration:
        """The configuration on the most devices, which stands for the series."""
        return self.configurations[max(self.configurations)]

    @property
    def words(self) -> str:
        """The parameters that its runs have in common."""
        return self.largest.words(without=SCALE)

    @cached_property
    def points(self) -> list[ScalingPoint]:
        """A point for each configuration whose step time and samples are known, by rising number of devices."""
        points = [self._point(devices) for devices in sorted(self.configurations)]
        return [point for point in points if point is not None]

    def _point(self, devices: int) -> ScalingPoint | None:
        """Return the point of a number of devices; None if the time or the samples of its steps are not known."""
        configuration = self.configurations[devices]
        step_s = configuration.blocks("iteration_time_s")
        samples = samples_per_device(configuration)
        if not step_s or samples is None:
            return None
        parameters = self._parameters(devices)
        # If the process that computes also loads, what is recorded as its wait for data is its own work.
        is_loading = parameters is not None and parameters.loads_in_step
        waits_s = {} if is_loading else configuration.blocks("data_s")
        return ScalingPoint(
            devices=devices,
            devices_per_node=devices // (configuration["nodes"] or 1),
            samples=samples,
            step_s=tuple(step_s.values()),
            waited_s=tuple(min(waits_s.get(block, 0.0), seconds) for block, seconds in step_s.items()),
        )

    @cached_property
    def checks(self) -> list[PredictionCheck]:
        """The measured step on each number of devices except the smallest, with its prediction from smaller numbers."""
        return checks(self.points)

    def forecast(self, devices: int) -> Prediction:
        """Predict the time of a step, throughput and speed-up on a number of devices.

        If nothing can be predicted, the result has a `reason` and no time. If all runs were on one node, the devices
        are assumed to be on one node, too. There is a caveat if they are GPUs, and more than the runs found on their
        node. If some runs were on several nodes, at most as many devices per node are assumed as the runs had.
        """
        reason = self._refusal(devices)
        if reason:
            return Prediction(devices, None, reason=reason)
        samples = _per_device({point.devices: point.samples for point in self.points}, devices)
        if samples is None:
            reason = "the samples of a device in a step are not known"
            return Prediction(devices, None, reason=f"{reason}, or neither stay nor shrink with the number of devices")
        devices_per_node = devices
        if self._spans_nodes:
            devices_per_node = min(devices, max(point.devices_per_node for point in self.points))
        predicted = predict(self.points, devices, devices_per_node, samples)
        if predicted.step_s is None:
            return predicted
        caveat = self._network_caveat(devices)
        caveats = predicted.caveats if caveat is None else (*predicted.caveats, caveat)
        measured = tuple(point.devices for point in self.points)
        return replace(self._with_rates(predicted), caveats=caveats, measured=measured)

    @property
    def _spans_nodes(self) -> bool:
        return any((configuration["nodes"] or 1) > 1 for configuration in self.configurations.values())

    def _network_caveat(self, devices: int) -> str | None:
        """Return the caveat that so many GPUs need a second node, while no run had one; None if it does not apply."""
        runs = [run for configuration in self.configurations.values() for run in configuration.completed]
        gpus = [run.provenance.gpu_count for run in runs if run.provenance.gpu_count]
        if self._spans_nodes or not gpus or self.largest["device"] != "cuda":
            return None
        if devices <= max(*gpus, *self.configurations):
            return None
        return f"more GPUs than the runs saw of their node, {max(gpus)}: a network between nodes was not measured"

    def _with_rates(self, predicted: Prediction) -> Prediction:
        """Add throughput and speed-up to a predicted step.

        There is a throughput only if the work of the predicted step is known, and a speed-up only if the work of a step
        on one device is known, too.
        """
        work = {devices: work_of_step(configuration) for devices, configuration in self.configurations.items()}
        work_per_device = {devices: amount / devices for devices, amount in work.items() if amount}
        predicted_per_device = _per_device(work_per_device, predicted.devices)
        if predicted_per_device is None or predicted.step_s is None or predicted.gain is None:
            return predicted
        predicted_work = predicted_per_device * predicted.devices
        throughput = predicted.step_s.map(lambda seconds: predicted_work / seconds)
        work_on_one_device = work_per_device.get(1)
        if work_on_one_device is None:
            return replace(predicted, throughput=throughput)
        speedup = predicted.gain.map(lambda gain: gain * predicted_work / work_on_one_device)
        return replace(predicted, throughput=throughput, speedup=speedup)

    def _refusal(self, devices: int) -> str | None:
        """Return why a number of devices is not predicted, such as that it was measured; None if there is no reason."""
        if devices in self.configurations:
            step_s = self.configurations[devices].mean("iteration_time_s")
            return f"measured: {1000 * step_s:.3g} ms per step" if step_s else "measured"
        parameters = self._parameters(devices)
        if parameters is not None:
            unsupported = self.largest.program.checks.unsupported_reason(parameters, HAS_EVERYTHING, {})
            if unsupported:
                return unsupported
        cpus = self.largest.provenance.usable_cpus
        threads = self.largest["threads"] or 1
        if self.largest["device"] == "cpu" and cpus and devices * threads > cpus:
            return f"processes would compete for the machine's {counted(cpus, 'CPU')}, which slows computing down"
        return None

    def _parameters(self, devices: int) -> JobParameters | None:
        """Return the parameters of a run on `devices` devices of one node; None if they are not known or not valid.

        Those of a script are not known: a table holds its command as one text, which does not show its arguments.
        """
        model = self.largest.program.parameters
        stated = {name: value for name, value in self.largest.parameters.items() if value is not None}
        values = {name: value for name, value in nested(stated).items() if name in model.model_fields}
        if isinstance(values.get("command"), str):
            return None
        try:
            return model.model_validate(values | {"devices": devices, "nodes": 1})
        except ValidationError:
            return None


class _SeriesKey(NamedTuple):
    """What the configurations of a series have in common."""

    # Names and values of all parameters except `SCALE` and the method.
    parameters: tuple[tuple[str, Any], ...]
    # The kind of machine, without the number of GPUs that a job was given.
    machine: str | None
    # The versions, without the profiler.
    software: str | None
    # The strategy, or the technique.
    method: Any


def series(results: Results) -> list[Series]:
    """Sort the completed configurations into series.

    A configuration on one device is in the series of each method that it is the baseline of. If several configurations
    of a series have the same number of devices, the first one is taken.
    """
    groups: dict[_SeriesKey, dict[int, Configuration]] = defaultdict(dict)
    for configuration in results.configurations():
        if configuration.completed:
            groups[_series_key(configuration)].setdefault(configuration["devices"], configuration)
    all_series: dict[_SeriesKey, Series] = {}
    baselines: set[_SeriesKey] = set()
    for key, configurations in groups.items():
        baseline = _baseline(key, groups)
        if baseline is not None:
            baselines.add(baseline)
            on_one_device = configurations.get(1, groups[baseline][1])
            configurations = {**configurations, 1: on_one_device}
        all_series[key] = Series(configurations)
    # A group of a baseline alone makes no series: it is already part of the series of other methods.
    return [member for key, member in all_series.items() if key not in baselines or len(member.configurations) > 1]


def _series_key(configuration: Configuration) -> _SeriesKey:
    method = configuration.program.method
    not_common = {*SCALE, method}
    parameters = tuple((name, value) for name, value in configuration.parameters.items() if name not in not_common)
    provenance = configuration.provenance
    return _SeriesKey(parameters, provenance.kind, provenance.software, configuration[method])


def _baseline(key: _SeriesKey, groups: Mapping[_SeriesKey, Mapping[int, Configuration]]) -> _SeriesKey | None:
    """Return the key of the group whose run on one device is the baseline of the group `key`.

    None if no group of another method has a baseline, or if the group `key` ran on one device only.
    """
    configurations = groups[key]
    if max(configurations) == 1:
        return None
    program = next(iter(configurations.values())).program
    for method in program.comparison.baselines(key.method):
        baseline = key._replace(method=method)
        if method != key.method and 1 in groups.get(baseline, {}):
            return baseline
    return None


def _per_device(amounts: Mapping[int, float], devices: int) -> float | None:
    """Return how much of a step's work each of `devices` devices does.

    `amounts`: how much each device does on other numbers of devices, by these numbers. If this is constant (weak
    scaling), it is returned. If the amount of all devices together is constant (strong scaling), that amount divided by
    `devices` is returned. None if neither is constant, or if nothing is known.

    >>> _per_device({1: 64, 2: 64}, 4), _per_device({1: 64, 2: 32}, 4), _per_device({1: 64, 2: 48}, 4)
    (64, 16.0, None)
    """
    if not amounts:
        return None
    most_devices = max(amounts)
    last_amount = amounts[most_devices]
    if is_same_work(list(amounts.values()), last_amount):
        return last_amount
    totals = [amount * count for count, amount in amounts.items()]
    if is_same_work(totals, last_amount * most_devices):
        return last_amount * most_devices / devices
    return None
