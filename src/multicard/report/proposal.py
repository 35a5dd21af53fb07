"""The contents of the page for an application for computing time, by what was measured.

The answer first: what is requested, then the evidence. What was not measured is left out, or the page says so.
"""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from multicard.analysis.bottlenecks.bottlenecks import peak_memory, report_of, summary
from multicard.analysis.choice.answers import HOURS, speedups
from multicard.analysis.choice.applied import (
    WORK,
    Request,
    other_series,
    proposed_choice,
    proposed_job,
    scaling_of,
    series_of,
)
from multicard.analysis.choice.choice import HOUR_S, Choice
from multicard.analysis.choice.choices import NO_CHOICE, Choices, outcomes_of
from multicard.analysis.choice.learning import words_of
from multicard.analysis.choice.next_steps import doubts
from multicard.analysis.evidence import DEVICE_WORDS, Configuration, Evidence
from multicard.analysis.runs.per_run import trace_shares
from multicard.analysis.scaling.headline import STEP_TIME
from multicard.analysis.scaling.speedup import BASELINE_DIFFERS, scaling_of_runs
from multicard.core.text import counted, plural
from multicard.core.units import ARGS_PREFIX, BYTES, SECONDS, UNKNOWN, number, number_in, percent, unit_for, with_unit
from multicard.experiment.workload import BATCH
from multicard.report.environment import environment
from multicard.report.proposal_page import Block, Proposal, Table
from multicard.runs.environment import NOT_RECORDED, SHOWN_DIGITS
from multicard.runs.record import RunRecord
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool
from multicard.workloads.script.template import fill, names_in

NOT_MEASURED = "not measured"
LEAST_PART = 0.005  # share of a step below which a part of it has no row
WINDOWS = {"warmup": "warm-up", "measured": "measured", "profiled": "profiled"}
# Versions that a time depends on, as they are called; the second kind only where GPUs were used.
VERSIONS = {"torch": "PyTorch", "python": "Python"}
OF_GPUS = {"cuda": "CUDA", "nccl": "NCCL", "driver": "driver"}
BATCHES = {
    "strong": "The total batch is constant, so all {devices} share it.",
    "weak": "The batch per {device} is constant, so the total batch grows with the {devices}.",
    "unknown": "Neither strong nor weak scaling, by what is known of the batches.",
}
# Parameters that the page has elsewhere.
TOLD = (
    "command", "script", "dataset", "model", "image_size", "sequence_length", "width_mult", "scaling", "devices",
    "nodes", "devices_per_node", "precision", "batch_size", "python", "folder",
)  # fmt: skip
PLACE = 2  # machine and versions, of what `Configuration.rest` gives: a run that was killed may not tell them
NOT_INCLUDED = "the start of jobs, and checkpoints and tests outside the measured steps"


def propose(
    evidence: Evidence, records: Mapping[str, RunRecord], request: Request, source: Sequence[tuple[str, str]]
) -> Proposal:
    """Make the page of the job that most runs measured.

    `records`: by run. `request`: what is applied for. `source`: facts about where the measurements
    are kept. Raises UserError if no throughput is known, or nothing was measured on the devices or of the work that is
    applied for.
    """
    job, others = proposed_job(evidence)
    asked, reason = proposed_choice(job, request)
    kinds = scaling_of_runs(evidence.scenarios)
    own = series_of(job, asked)
    series = {scaling_of(own, kinds): own} | other_series(job, own, kinds)
    own_records = [records[run.run] for run in asked.configuration.completed if run.run in records]
    page = _Page(job, asked, series, request, evidence, own_records)
    synthetic = any(run.synthetic for run in evidence.runs)
    return Proposal(
        title=f"Computing time for {page.what}{' (synthetic timings)' if synthetic else ''}",
        request=page.request(),
        reason=reason,
        blocks=[page.training(), page.machine(), *page.scaling(), page.step(), page.resources(), page.measured(source)],
        caveats=page.caveats(others, synthetic),
        speedups=_points(series, job.device),
    )


def _points(series: Mapping[str, Sequence[Choice]], device: str) -> pd.DataFrame:
    """Speed-up with its interval of each kind of scaling, one per number of devices: the fastest."""
    fastest = {
        (kind, row.devices): row.speedup
        for kind, rows in series.items()
        for row in sorted(rows, key=lambda each: each.rate.value)
        if row.speedup is not None
    }
    names = ["series", "devices", "repeats", "speedup", "speedup_low", "speedup_high"]
    rows = [
        (f"{kind} scaling", count, of.repeats, of.value, *((None, None) if count == 1 else (of.low, of.high)))
        for (kind, count), of in sorted(fastest.items())
    ]
    return pd.DataFrame(rows, columns=names).astype(dict.fromkeys(names[3:], float)).assign(device=device)


@dataclass(frozen=True)
class _Page:
    """What the parts of the page are made of: the row that is applied for, its series first of all, its records."""

    job: Choices
    asked: Choice
    series: Mapping[str, list[Choice]]  # by kind of scaling
    applied: Request
    evidence: Evidence
    records: list[RunRecord]

    @property
    def of(self) -> Configuration:
        """The configuration that is applied for."""
        return self.asked.configuration

    @property
    def rows(self) -> list[Choice]:
        """The series that is applied for."""
        return next(iter(self.series.values()))

    @property
    def what(self) -> str:
        """What is trained, in words."""
        return _filled(self.of) if self.of["command"] else self.job.job

    @property
    def samples(self) -> str:
        """What a sample is called."""
        return "samples" if self.job.unit == "token" else plural(2, self.job.unit)

    @property
    def runs(self) -> str:
        """Their number, in words."""
        return counted(self.applied.runs, "run")

    @property
    def work(self) -> str:
        """The work of a run, in words."""
        amount, what = self.applied.amount, self.applied.unit
        what = self.samples if what == "samples" else what
        return f"{f'{amount:,.0f}' if amount == round(amount) else number(amount)} {what}"

    def devices(self, count: int | None = None) -> str:
        """A number of devices in words; by default that which is applied for."""
        return counted(count or self.asked.devices, DEVICE_WORDS[self.job.device])

    def mean(self, row: Choice, measure: str) -> Interval | None:
        """Return the mean of a measure, with its interval by the scatter of all configurations of the job."""
        every = [each.configuration.blocks(measure) for each in self.job.rows]
        return Pool(every).mean(next(at for at, each in enumerate(self.job.rows) if each is row))

    def run_hours(self, row: Choice) -> Interval | None:
        """Return the hours that a run takes; None where the time of its work was not measured."""
        measure, seconds = WORK[self.applied.unit]
        mean = self.mean(row, measure)
        return mean and mean.map(lambda value: seconds(self.applied.amount, value) / HOUR_S)

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs of a node: as stated, else the most that a job saw or ran on, which may have been given a part of it."""
        on_gpus = [(each, each.provenance.gpu_count) for each in self.job.configurations if self.job.device == "cuda"]
        seen = [max(count, each["devices"] // (each["nodes"] or 1)) for each, count in on_gpus if count]
        return self.applied.gpus_per_node or max(seen, default=0) or None

    def nodes(self, row: Choice) -> int | None:
        """Whole nodes that a run takes: by the stated GPUs of a node, else at least those that it had."""
        had = row.configuration["nodes"] or 1
        if self.job.device != "cuda":
            return had
        if not self.gpus_per_node:
            return None
        whole = math.ceil(row.devices / self.gpus_per_node)
        return whole if self.applied.gpus_per_node else max(whole, had)

    def request(self) -> str:
        """The first sentence."""
        row, measure, nodes = self.asked, WORK[self.applied.unit].measure, self.nodes(self.asked)
        is_tokens = measure == "tokens_per_s"
        hours_per_run = self.run_hours(row)
        rate = self.mean(row, measure if is_tokens else self.of.rate)
        if hours_per_run is None or rate is None:
            raise ValueError(f"{self.of.words()}: expected rates and times above zero")
        hours = hours_per_run.value * self.applied.runs
        asked = f"{number(hours * row.devices)} {HOURS[self.job.device]}"
        if nodes:
            asked = f"{number(hours * nodes)} node-hours ({asked})"
        unit = "tokens" if is_tokens else plural(2, self.job.unit)
        text = f"{asked}: {self.runs} of {self.work} on {self.devices()} at {rate.format(unit=f' {unit} per second')}"
        if row.devices > 1 and row.speedup is not None:
            # Of the fastest of several the interval allows for its having been chosen.
            speedup = next((ratio for each, ratio in speedups(self.job) if each is row), row.speedup)
            efficiency = speedup.map(lambda ratio: ratio / row.devices)
            text += f", {efficiency.format(partial(percent, decimals=0), ' efficient')}"
        return f"{text}."

    def training(self) -> Block:
        """What is trained."""
        own, work = self.of, self.of.workload
        facts = [("Command" if own["command"] else "Training", self.what)]
        script = self.records[0].script if self.records else None
        if script is not None and script.file:
            commit = [f"commit {script.commit[:SHOWN_DIGITS]}"] if script.commit else []
            checksum = [f"sha256 {script.sha256[:SHOWN_DIGITS]}"] if script.sha256 else []
            facts.append(("Script", ", ".join([script.file, *commit, *checksum])))
        source = own.provenance.data_source
        data = own["dataset"] and f"{own['dataset']}{f' ({source})' if source not in (None, own['dataset']) else ''}"
        facts.append(("Data", data or ("loaded by the script" if work.is_user_program else NOT_RECORDED)))
        batch = self.asked.learning.get(BATCH)
        device = DEVICE_WORDS[self.job.device]
        each = f", {number(batch / own['devices'])} per {device}" if isinstance(batch, int) else ""
        facts.append(("Batch", NOT_RECORDED if batch is None else f"{batch} {self.samples} per step{each}"))
        facts.append(("Precision", own["precision"] or "set by the script"))
        in_command = [name for name in own.parameters if name.startswith(ARGS_PREFIX)]
        settings = own.words(without={*NO_CHOICE, *TOLD, *in_command})
        return Block("The job", facts=[*facts, *([("Settings", settings)] if settings else [])])

    def machine(self) -> Block:
        """Hardware and versions of the runs that are applied for."""
        found = environment(self.records)
        if not found.machines:
            return Block("The machine", [f"{NOT_RECORDED.capitalize()}."])
        facts = {name: text for name, text in found.machines[0][0].items() if NOT_RECORDED not in text}
        facts.pop("Host", None)
        gpus = facts.pop("GPUs", NOT_RECORDED)
        on_gpus = self.job.device == "cuda"
        if self.gpus_per_node and ";" not in gpus:  # of one kind; a job may be shown a part of them
            gpus = f"{self.gpus_per_node} × {gpus.partition(' × ')[2]}"
        nodes = [("Nodes", str(self.of["nodes"] or 1)), *([("GPUs of a node", gpus)] if on_gpus else [])]
        known = found.versions[0][0] if found.versions else {}
        wanted = VERSIONS | (OF_GPUS if on_gpus else {})
        versions = [f"{word} {known[name]}" for name, word in wanted.items() if known.get(name, "none") != "none"]
        software = ("Software", ", ".join(versions) or NOT_RECORDED)
        return Block("The machine", facts=[*nodes, *facts.items(), software])

    def scaling(self) -> list[Block]:
        """A table for each kind of scaling; what was not measured, and how to get it."""
        device = DEVICE_WORDS[self.job.device]
        if len({row.devices for row in self.rows}) == 1:
            missing = (
                f"Scaling: {NOT_MEASURED}, all runs of this configuration are on {self.devices()}. To measure it: "
            )
            missing += "multicard scale --devices 1,2,4, or devices: [1, 2, 4] under vary in the configuration."
            return [Block("Scaling", [missing], table=self._scaling_table(self.rows))]
        blocks = []
        for kind, rows in self.series.items():
            sentences = [BATCHES[kind].format(device=device, devices=plural(2, device))]
            if blocks and (unlike := {name: pair for name, pair in rows[-1].changes.items() if name != BATCH}):
                sentences.append(f"Otherwise different: {words_of(unlike)}.")
            if rows[0].devices > 1:
                sentences.append(f"Speed-up and efficiency: {NOT_MEASURED}, no run is on one device.")
            title = "Scaling" if kind == "unknown" else f"{kind.capitalize()} scaling"
            blocks.append(Block(title, sentences, table=self._scaling_table(rows), figure=not blocks))
        absent = [kind for kind in ("strong", "weak") if kind not in self.series and "unknown" not in self.series]
        blocks[-1].sentences.extend(f"{kind.capitalize()} scaling: {NOT_MEASURED}." for kind in absent)
        return blocks

    def _scaling_table(self, rows: Sequence[Choice]) -> Table:
        """Step time, throughput, speed-up and efficiency over devices."""
        steps = [self.mean(row, STEP_TIME) for row in rows]
        factor, unit = unit_for([each.value if each else None for each in steps], SECONDS)
        several_nodes = len({row.configuration["nodes"] or 1 for row in rows}) > 1
        cells = []
        for row, step in zip(rows, steps, strict=True):
            gain = row.speedup.without_bounds() if row.speedup and row.devices == 1 else row.speedup
            efficiency = gain and gain.map(lambda ratio, row=row: 100 * ratio / row.devices)
            nodes = f" on {counted(row.configuration['nodes'] or 1, 'node')}" if several_nodes else ""
            shown = (step and step.map(lambda seconds: seconds * factor), row.rate, gain, efficiency)
            cells.append([f"{row.devices}{nodes}", *map(_cell, shown), str(len(row.configuration.completed))])
        device, unit_of_work = plural(2, DEVICE_WORDS[self.job.device]), plural(2, self.job.unit).capitalize()
        headings = [device, f"Step ({unit})", f"{unit_of_work}/s", "Speed-up", "Efficiency (%)", "n"]
        return Table(headings, cells, _place(self.asked, rows))

    def step(self) -> Block:
        """Where the time of a step goes, and memory."""
        found = report_of(self.of, self.evidence.per_run(trace_shares).to_dict("index"))
        step_s, said = self.of.mean(STEP_TIME), summary(found)
        parts = sorted(found.parts.items(), key=lambda part: -part[1])
        rows = [
            [part, percent(share), with_unit(share * step_s, SECONDS) if step_s else UNKNOWN]
            for part, share in parts
            if share >= LEAST_PART
        ]
        sentence = f"{said[:1].upper()}{said[1:]}." if said else f"Where its time goes: {NOT_MEASURED}."
        table = Table(["Part", "Share", "Time"], rows) if rows else None
        return Block(f"A step on {self.devices()}", [sentence], [("Peak memory", self._memory())], table)

    def _memory(self) -> str:
        used, has = peak_memory(self.of), self.of.provenance.gpu_memory_bytes
        if not used:
            return NOT_MEASURED
        if self.job.device != "cuda":
            return f"{with_unit(used, BYTES)} per process"
        return f"{with_unit(used, BYTES)} per GPU" + (
            f", {percent(used / has)} of its {with_unit(has, BYTES)}" if has else ""
        )

    def resources(self) -> Block:
        """What the runs take on each number of devices that was measured."""
        hours, runs = HOURS[self.job.device], self.applied.runs
        timed = [(row, time) for row in self.rows if (time := self.run_hours(row)) is not None]
        hours = f"{hours[0].upper()}{hours[1:]}"
        headings = [plural(2, DEVICE_WORDS[self.job.device]), "Nodes", "Hours/run", f"{hours}/run"]
        headings += [f"{hours}, {self.runs}", f"Node-hours, {self.runs}"]
        cells = []
        for row, time in timed:
            nodes = self.nodes(row)
            in_all = [number(time.value * count * runs) if count else UNKNOWN for count in (row.devices, nodes)]
            of_all = time.map(lambda each, row=row: each * row.devices)
            cells.append([str(row.devices), str(nodes or UNKNOWN), _cell(time), _cell(of_all), *in_all])
        of = "node-hours: not known, state --gpus-per-node"
        if self.gpus_per_node:
            of = f"whole nodes of {counted(self.gpus_per_node, 'GPU')}"
            of += "" if self.applied.gpus_per_node else ", as the measured jobs saw them"
        elif self.job.device == "cpu":
            of = f"on {counted(self.nodes(self.asked) or 1, 'node')}, as measured"
        sentences = [f"{self.runs} of {self.work}; {of}; without {NOT_INCLUDED}."]
        if self.applied.unit == "steps" and next(iter(self.series)) != "strong" and len(timed) > 1:
            sentences.append("A step on more devices processes more samples, so the rows are not the same work.")
        table = Table(headings, cells, _place(self.asked, [row for row, _ in timed]))
        return Block("Resources", sentences, table=table)

    def measured(self, source: Sequence[tuple[str, str]]) -> Block:
        """How the numbers were measured, and where they are kept."""
        found, repeats = environment(self.records), len(self.of.completed)
        steps = self.evidence.table("steps").get(self.of.completed[0].run)
        facts = []
        if steps is not None:
            counts = steps.loc[steps["rank"] == steps["rank"].min(), "window"].value_counts()
            windows = [f"{counts[name]} {word}" for name, word in WINDOWS.items() if name in counts]
            facts.append(("Steps of a run", f"{', '.join(windows)}; timed while no profiler collects"))
        said = f"{repeats}, each a job of its own; in brackets: 95% CI over repeats"
        facts.append(("Repeats (n)", said if repeats > 1 else "1, so no intervals: multicard scale --repeats 3"))
        profilers = sorted({record.profiler.used for record in self.records})
        facts.append(("Profiler", ", ".join(profilers) or NOT_RECORDED))
        version = found.versions[0][0].get("multicard", "") if found.versions else ""
        facts.append(("Tool", f"multicard {version}".strip()))
        if found.first_started:
            facts.append(("Measured on", found.first_started[:10]))
        return Block("How it was measured", facts=[*facts, *source])

    def caveats(self, others: Sequence[str], synthetic: bool) -> list[str]:
        """What could change the answer."""
        said = ["Synthetic timings: no machine takes these times."] if synthetic else []
        if self.job.device == "cpu":
            said.append("Measured on CPU processes, which says nothing about GPUs.")
        nodes, had = self.nodes(self.asked), self.of["nodes"] or 1
        if nodes and nodes != had:
            said.append(f"Measured on {counted(had, 'node')}, applied for on {nodes}: that was not measured.")
        if mixed := environment(self.records).mixed:
            said.append(f"The repeats ran on {mixed}.")
        own = self.of.rest(BASELINE_DIFFERS)[PLACE:]
        lost = [each for each in self.job.lost if each.rest(BASELINE_DIFFERS)[PLACE:] == own]
        said += [f"On {self.devices(each['devices'])}: {outcomes_of(each)}." for each in lost]
        doubt = doubts(self.job)
        said += [f"{doubt[:1].upper()}{doubt[1:]}."] if ";" in doubt or doubt.startswith("1 repeat") else []
        return [*said, *([f"The results hold other jobs, too: {'; '.join(others)}."] if others else [])]


def _place(row: Choice, rows: Iterable[Choice]) -> int | None:
    return next((at for at, each in enumerate(rows) if each is row), None)


def _cell(interval: Interval | None) -> str:
    """Return a value with its interval in brackets."""
    return number_in(interval.value, interval.low, interval.high) if interval else NOT_MEASURED


def _filled(own: Configuration) -> str:
    """A script's command with the values of its own parameters."""
    command = shlex.split(own["command"])
    stated = {name: own[f"{ARGS_PREFIX}{name}"] for name in names_in(command)}
    return shlex.join(fill(command, {name: f"{{{name}}}" if of is None else of for name, of in stated.items()}))
