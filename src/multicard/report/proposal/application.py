"""What is applied for: runs of a job on some number of devices, with the hours and nodes that they take."""

import math
from dataclasses import dataclass
from functools import partial

from multicard.answers.choice.answers import HOURS, speedups
from multicard.answers.choice.applied import WORK, Request
from multicard.answers.choice.choice import HOUR_S, Choice
from multicard.answers.choice.choices import Choices
from multicard.answers.pools import pool_of
from multicard.core.text import counted, plural
from multicard.core.units import number, percent
from multicard.results.configuration import DEVICE_WORDS, Configuration
from multicard.stats.interval import Interval


@dataclass(frozen=True)
class Application:
    """The runs that are applied for. Made by `propose.propose`, used by every section of the page.

    Methods with the argument `choice` return what the same work takes with that choice of the job.
    """

    job: Choices
    choice: Choice  # the one of the job's choices that is applied for
    request: Request

    @property
    def configuration(self) -> Configuration:
        """The configuration that is applied for."""
        return self.choice.configuration

    @property
    def is_on_gpus(self) -> bool:
        """True if the job's devices are GPUs, False if they are processes on CPUs."""
        return self.job.device == "cuda"

    @property
    def device_word(self) -> str:
        """The word for one device."""
        return DEVICE_WORDS[self.job.device]

    @property
    def devices_words(self) -> str:
        """The number of devices that is applied for, such as "4 GPUs"."""
        return self.job.on(self.choice.devices)

    @property
    def hours_word(self) -> str:
        """The unit of what is applied for, such as "GPU-hours"."""
        return HOURS[self.job.device]

    @property
    def samples_word(self) -> str:
        """The word for several samples, such as "images"."""
        return "samples" if self.job.unit == "token" else plural(2, self.job.unit)

    @property
    def runs_words(self) -> str:
        """The number of runs, such as "3 runs"."""
        return counted(self.request.runs, "run")

    @property
    def work_words(self) -> str:
        """The work of a run, such as "1,000,000 images"."""
        amount = self.request.amount
        amount_words = f"{amount:,.0f}" if amount == round(amount) else number(amount)
        unit = self.samples_word if self.request.unit == "samples" else self.request.unit
        return f"{amount_words} {unit}"

    @property
    def gpus_per_node(self) -> int | None:
        """Number of GPUs in a node: the stated one, else the largest number that a measured job saw or used on a node.

        The largest counts because a job may have been given only a part of its node. None for jobs on CPUs, and if no
        number of GPUs was recorded.
        """
        if self.request.gpus_per_node:
            return self.request.gpus_per_node
        if not self.is_on_gpus:
            return None
        counts = []
        for configuration in self.job.configurations:
            visible_gpus = configuration.provenance.gpu_count
            if visible_gpus:
                # If Slurm shows each rank only its own GPU, a job used more GPUs than its record has.
                used_gpus = configuration["devices"] // measured_nodes(configuration)
                counts.append(max(visible_gpus, used_gpus))
        return max(counts, default=None)

    def mean(self, choice: Choice, measure: str) -> Interval | None:
        """Return the mean of a measure; None if it has no value. All choices of the job determine the interval."""
        pool = pool_of(measure, [row.configuration for row in self.job.rows], self.job.others)
        return pool.mean(choice.key)

    def run_hours(self, choice: Choice) -> Interval | None:
        """Return the hours that a run takes; None if the measure of its work, see `WORK`, was not measured."""
        measure, seconds = WORK[self.request.unit]
        mean = self.mean(choice, measure)
        return mean and mean.map(lambda value: seconds(self.request.amount, value) / HOUR_S)

    def nodes(self, choice: Choice) -> int | None:
        """Return how many whole nodes a run takes; None on GPUs if the number of GPUs in a node is not known.

        Unless that number is stated, the result is at least the number of nodes that the measured runs had. On CPUs it
        is that number.
        """
        had_nodes = measured_nodes(choice.configuration)
        if not self.is_on_gpus:
            return had_nodes
        if not self.gpus_per_node:
            return None
        whole_nodes = math.ceil(choice.devices / self.gpus_per_node)
        return whole_nodes if self.request.gpus_per_node else max(whole_nodes, had_nodes)

    def sentence(self) -> str:
        """Return the sentence that opens the page: the hours that are applied for, the runs, their rate and efficiency.

        Raises `ValueError` if the choice has no rate, or no time of its work.
        """
        if WORK[self.request.unit].measure == "tokens_per_s":
            rate_measure, rate_unit = "tokens_per_s", "tokens"
        else:
            rate_measure, rate_unit = self.configuration.rate, plural(2, self.job.unit)
        rate = self.mean(self.choice, rate_measure)
        run_hours = self.run_hours(self.choice)
        if run_hours is None or rate is None:
            raise ValueError(f"{self.configuration.words()}: expected rates and times above zero")
        resources = self._resources_words(run_hours.value * self.request.runs)
        rate_words = rate.format(unit=f" {rate_unit} per second")
        sentence = f"{resources}: {self.runs_words} of {self.work_words} on {self.devices_words} at {rate_words}"
        efficiency = self._efficiency()
        if efficiency is not None:
            sentence += f", {efficiency.format(partial(percent, decimals=0), ' efficient')}"
        return f"{sentence}."

    def _resources_words(self, hours: float) -> str:
        """Return so many hours of the chosen devices as device-hours, and as node-hours if the nodes are known."""
        device_hours = f"{number(hours * self.choice.devices)} {self.hours_word}"
        nodes = self.nodes(self.choice)
        return f"{number(hours * nodes)} node-hours ({device_hours})" if nodes else device_hours

    def _efficiency(self) -> Interval | None:
        """Return the speed-up divided by the number of devices; None on one device, or if nothing ran on one."""
        devices = self.choice.devices
        if devices == 1 or self.choice.speedup is None:
            return None
        # If several choices were measured on these devices, `speedups` has an interval for the fastest one that takes
        # into account that it was chosen by the same values.
        chosen_ratios = {chosen.choice.key: chosen.ratio for chosen in speedups(self.job)}
        speedup = chosen_ratios.get(self.choice.key, self.choice.speedup)
        return speedup.map(lambda ratio: ratio / devices)


def measured_nodes(configuration: Configuration) -> int:
    """Return the number of nodes that the runs of a configuration had."""
    return configuration["nodes"] or 1


def shown_speedup(choice: Choice) -> Interval | None:
    """Return the speed-up; on one device without bounds, because it is compared with itself. None if it is unknown."""
    if choice.speedup is None or choice.devices > 1:
        return choice.speedup
    return choice.speedup.without_bounds()
