"""What decides whether an option may help a user's program: its devices, how it trains, and what was measured."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import pandas as pd

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.host.regular import FEWEST
from multicard.answers.diagnoses.loading.waits import without_chance
from multicard.answers.diagnoses.loading.workers import HANDOVER_S
from multicard.answers.diagnoses.ranks.own_work import OUTSIDE, steps_of
from multicard.answers.scaling.growth import LEAST_RATIO, growths
from multicard.answers.scaling.work import SAME_WORK, STEP_TIME, samples_per_device
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration
from multicard.results.phase_parts import stalled_count
from multicard.results.results import Results

# The size of the first bucket of gradients in bytes: `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`.
FIRST_BUCKET = 2**20


@dataclass(frozen=True)
class TrainingFacts:
    """How the runs of a configuration train, as the record of their ranks says. None: it is not known."""

    # True if a weight of the model is that of a convolution.
    has_convolutions: bool | None = None
    # True if torch.compile compiled anything.
    is_compiled: bool | None = None
    # True if the optimizer updates its tensors one by one.
    loops_over_parameters: bool | None = None
    # True if the optimizer could update its tensors by `fused=True`.
    can_fuse: bool | None = None
    # Bytes of the gradients that `DistributedDataParallel` exchanges.
    gradient_bytes: int | None = None
    # What distributes the model, such as `DistributedDataParallel`.
    wrapper: str | None = None
    # Seconds of a step outside of its phases, without what one or two steps of a run take there by chance, as for
    # garbage.
    other_s: float | None = None
    # Most workers of a loader; 0 if the training process loads by itself.
    num_workers: int | None = None
    # True if the workers of all loaders stay from one pass to the next.
    keeps_workers: bool | None = None
    # True if all loaders put batches into pinned memory.
    pins_memory: bool | None = None


NOT_KNOWN = TrainingFacts()
# What is known of each configuration, by its key. Of a configuration that is missing, nothing is known.
FactsByConfiguration = Mapping[Hashable, TrainingFacts]


def facts_of(results: Results) -> FactsByConfiguration:
    """Return how each configuration trains, by its key, but for the times of its steps."""
    setups, loaders = results.table("training_setup"), results.table("loaders")
    if setups.empty and loaders.empty:
        return {}
    return {one.key: _facts(one, setups, loaders) for one in results.configurations()}


def with_steps_of(about: Configuration, facts: FactsByConfiguration, results: Results) -> FactsByConfiguration:
    """Return these facts with those that the steps of one configuration show."""
    of_steps = replace(facts.get(about.key, NOT_KNOWN), other_s=_usual_other_s(about, results))
    return {**facts, about.key: of_steps}


def _usual_other_s(configuration: Configuration, results: Results) -> float | None:
    """Return the mean of the time outside of phases over steps, ranks and runs; see `TrainingFacts.other_s`."""
    of_runs = [
        run.phases_s[OUTSIDE].apply(without_chance).to_numpy().mean() for run in steps_of(configuration, results)
    ]
    return float(fmean(of_runs)) if of_runs else None


def _facts(configuration: Configuration, setups: pd.DataFrame, loaders: pd.DataFrame) -> TrainingFacts:
    """Return how a configuration trains. `setups`, `loaders`: the gathered tables of these names, of all runs."""
    runs = [run.run for run in configuration.completed]
    setup = setups[setups["run"].isin(runs)]
    loader = loaders[loaders["run"].isin(runs)]
    workers = loader["num_workers"].dropna()
    return TrainingFacts(
        has_convolutions=_any(setup["has_convolutions"]),
        is_compiled=_any(setup["is_compiled"]),
        loops_over_parameters=_any(setup["loops_over_parameters"]),
        can_fuse=_any(setup["can_fuse"]),
        gradient_bytes=None if setup["gradient_bytes"].dropna().empty else int(setup["gradient_bytes"].max()),
        wrapper=_same(setup["wrapper"]),
        num_workers=None if workers.empty else int(workers.max()),
        keeps_workers=_all(loader["persistent_workers"]),
        pins_memory=_all(loader["pin_memory"]),
    )


def _any(values: "pd.Series[bool]") -> bool | None:
    """Return whether any rank says True; None if none does and one does not know, or without ranks."""
    known = values.dropna().astype(bool)
    if known.any():
        return True
    return None if values.empty or values.isna().any() else False


def _same(values: "pd.Series[str]") -> str | None:
    """Return the value of all ranks; None if they differ, if one does not know, or without ranks."""
    first = None if values.empty or values.isna().any() else str(values.iloc[0])
    return first if values.nunique() == 1 else None


def _all(values: "pd.Series[bool]") -> bool | None:
    """Return whether all loaders have True; None if one does not know and none has False, or without loaders."""
    known = values.dropna().astype(bool)
    if not known.all():
        return False
    return None if values.empty or values.isna().any() else True


@dataclass(frozen=True)
class Situation:
    """A configuration that options may help. The properties are the conditions that options.yaml names.

    A condition about a fact that is not known holds, except for `has_convolutions`.
    """

    configuration: Configuration
    # All configurations that ran.
    measured: Sequence[Configuration]
    facts_by_configuration: FactsByConfiguration
    # Share of the bytes copied to GPUs that came from pageable memory; None if that is not known.
    pageable: float | None = None

    @property
    def facts(self) -> TrainingFacts:
        """What is known of the configuration."""
        return self.facts_by_configuration.get(self.configuration.key, NOT_KNOWN)

    @property
    def has_several_devices(self) -> bool:
        """True with more than one device."""
        devices: int = self.configuration["devices"]
        return devices > 1

    @property
    def has_numa_nodes(self) -> bool:
        """True if runs used several NUMA nodes, or may have."""
        return has_several_numa_nodes(self.configuration)

    @property
    def copies_pageable(self) -> bool:
        """True unless copies to GPUs are known to come from pinned memory."""
        return self.pageable is None or self.pageable >= LEAST

    @property
    def has_convolutions(self) -> bool:
        """True if the model is known to have convolutions."""
        return self.facts.has_convolutions is True

    @property
    def is_not_compiled(self) -> bool:
        """True unless torch.compile is known to compile the model."""
        return not self.facts.is_compiled

    @property
    def loops_over_parameters(self) -> bool:
        """True unless the optimizer is known to update many tensors at once."""
        return self.facts.loops_over_parameters is not False

    @property
    def can_fuse(self) -> bool:
        """True unless the optimizer is known to have no `fused=True`."""
        return self.facts.can_fuse is not False

    @property
    def forward_is_hidden(self) -> bool:
        """True if the forward pass is in no phase, as in loops without a loader of PyTorch's, and no trace shows it."""
        has_backward = bool(self.configuration.mean("backward_s"))
        return has_backward and not self.configuration.mean("forward_s") and not self._has_traced_parts

    @property
    def forward_is_seen(self) -> bool:
        """True unless `forward_is_hidden`."""
        return not self.forward_is_hidden

    @property
    def other_takes_time(self) -> bool:
        """True unless the time outside of phases is that of one or two steps, which are long by chance.

        A trace shows this part otherwise.
        """
        other_s, step_s = self.facts.other_s, self.configuration.mean(STEP_TIME)
        return other_s is None or not step_s or other_s >= LEAST * step_s or self._has_traced_parts

    @property
    def updates_take_time(self) -> bool:
        """True unless optimizers are known to take less of the step than a bottleneck does."""
        optimizer_s, step_s = self.configuration.mean("optimizer_s"), self.configuration.mean(STEP_TIME)
        return optimizer_s is None or not step_s or optimizer_s >= LEAST * step_s

    @property
    def exchange_may_take_time(self) -> bool:
        """True unless a step is known to take hardly longer than on one device, and no trace shows communication."""
        if self.configuration.mean(StepPart.COMMUNICATION.column):
            return True
        growth = growths(self._same_job()).get(self.configuration.key)
        return growth is None or growth.ratio.value >= LEAST_RATIO

    @property
    def is_data_parallel(self) -> bool:
        """True unless the model is known to be distributed by something else than `DistributedDataParallel`."""
        return self.facts.wrapper in (None, "DistributedDataParallel")

    @property
    def may_have_buckets(self) -> bool:
        """True unless gradients are known to be one bucket, whatever the size of the others (`FIRST_BUCKET`)."""
        size = self.facts.gradient_bytes
        return self.is_data_parallel and (size is None or size > FIRST_BUCKET)

    @property
    def loading_takes_long(self) -> bool:
        """True unless steps are known to wait for data for a shorter time than loaders take for any (`HANDOVER_S`)."""
        data_s = self.configuration.mean("data_s")
        return data_s is None or data_s >= HANDOVER_S

    @property
    def stalls_recur(self) -> bool:
        """True unless so few steps of each run stall that it may be by chance."""
        of_runs = [run.values.get("stalled_steps") for run in self.configuration.completed]
        counts = [stalled_count(words) for words in of_runs if words]
        return not counts or max(counts) >= FEWEST

    @property
    def has_workers(self) -> bool:
        """True unless the training process is known to load by itself."""
        return self.facts.num_workers != 0

    @property
    def ends_workers(self) -> bool:
        """True unless there are no workers, or they are known to stay from one pass to the next."""
        return self.has_workers and not self.facts.keeps_workers

    @property
    def does_not_pin(self) -> bool:
        """True unless loaders are known to put batches into pinned memory."""
        return not self.facts.pins_memory

    @property
    def passes_begin(self) -> bool:
        """True unless measured steps are known to be of one pass over the data."""
        passes = self.configuration.mean("measured_passes")
        return passes is None or passes > 1

    @property
    def more_workers_are_untried(self) -> bool:
        """True unless the same job ran with more workers on as many devices."""
        own = self.facts.num_workers
        if own is None:
            return True
        others = [self.facts_by_configuration.get(other.key, NOT_KNOWN).num_workers for other in self._on_as_many()]
        return not any(workers is not None and workers > own for workers in others)

    @property
    def larger_batch_is_untried(self) -> bool:
        """True unless the same job ran with a larger batch per device on as many devices."""
        own = samples_per_device(self.configuration)
        if own is None:
            return True
        others = [samples_per_device(other) for other in self._on_as_many()]
        return not any(batch is not None and batch > own * (1 + SAME_WORK) for batch in others)

    @property
    def fewer_devices_are_untried(self) -> bool:
        """True if there are several devices, and the same job did not run on fewer."""
        devices = self.configuration["devices"]
        fewer = [other for other in self._same_job() if other["devices"] < devices]
        return self.has_several_devices and not fewer

    @property
    def _has_traced_parts(self) -> bool:
        return self.configuration.mean(StepPart.LAUNCHES.column) is not None

    def _on_as_many(self) -> list[Configuration]:
        return [other for other in self._same_job() if other["devices"] == self.configuration["devices"]]

    def _same_job(self) -> list[Configuration]:
        own = job_of(self.configuration)
        return [other for other in self.measured if other.completed and job_of(other) == own]


def job_of(configuration: Configuration) -> tuple[str, str, str]:
    """Return a key that is equal for configurations of the same job on the same kind of device."""
    program = configuration.program
    return program.name, program.comparison.job(configuration.parameters), configuration["device"]


def has_several_numa_nodes(configuration: Configuration) -> bool:
    """True if runs used several NUMA nodes. If none is recorded, a machine with GPUs is assumed to have several."""
    nodes = {node for run in configuration.runs for node in run.provenance.numa_nodes}
    return len(nodes) > 1 or (not nodes and configuration["device"] == "cuda")
