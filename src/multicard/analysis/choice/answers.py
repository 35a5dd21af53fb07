"""How many devices a training needs, in words: an answer for each job, or why there is none."""

import re
import shlex
from collections.abc import Sequence
from itertools import groupby

from multicard.analysis.choice.learning import changes_words, learning_words
from multicard.analysis.choice.tradeoff import Demand, Tradeoff, Training, tradeoffs
from multicard.analysis.choice.tradeoff_table import cost_of, length_words, lost_words
from multicard.analysis.evidence import DEVICE_WORDS, Configuration, Evidence, place_words
from multicard.analysis.runs.notices import NOTICES
from multicard.core.text import counted, for_markdown, listed, plural
from multicard.core.units import BYTES, UNKNOWN, Units, confidence, number, percent, with_unit
from multicard.experiment.parameters import nested

ENERGY: Units = ((3.6e6, "kWh"), (3.6e3, "Wh"), (1.0, "J"))
MOST_ROWS = 12  # of a table; beyond, only the front
MOST_CHANGES = 5  # choices of batch, precision and the like that are spelled out
HOURS = {"cuda": "GPU-hours", "cpu": "process-hours"}


def answer_lines(evidence: Evidence, demand: Demand) -> list[str]:
    """Answer as Markdown, a part for each job; text from files is escaped."""
    found = tradeoffs(evidence, demand)
    if not found:
        return []
    lines = ["## Time and cost of the whole training", ""]
    for job, place in zip(found, place_words([(job.machine, job.versions) for job in found]), strict=True):
        where = f", on {place}" if place else ""
        lines += [f"### {for_markdown(f'{job.job}{where}')}", "", *_job_lines(job, evidence, demand), *_lost(job)]
    return lines


def duration_words(seconds: float) -> str:
    """A duration by its two largest units.

    >>> duration_words(18_600), duration_words(200_000), duration_words(12.34), duration_words(3599.9)
    ('5 h 10 min', '2 d 8 h', '12.3 s', '1 h')
    """
    for size, unit, below in ((86400, "d", "h"), (3600, "h", "min"), (60, "min", "s")):
        step = {"d": 3600, "h": 60, "min": 1}[unit]
        if seconds >= size - step / 2:
            whole, rest = divmod(round(seconds / step), size // step)
            return f"{whole} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{number(seconds)} s"


def _job_lines(job: Tradeoff, evidence: Evidence, demand: Demand) -> list[str]:
    if job.work is None or not job.trainings:
        return [
            f"No answer: the length of the training in {plural(2, job.unit)}, or the throughput, was not recorded. "
            "`--samples N` states the length; where no sample was counted, `samples_per_step` of a script does.",
            "",
        ]
    runs = [run for each in job.trainings for run in each.configuration.completed]
    synthetic = sum(run.synthetic for run in runs)
    lines = []
    if synthetic == len(runs):
        lines.append("No answer: all of these runs have synthetic timings; no machine takes the times below.")
    elif synthetic:
        lines.append(f"{synthetic} of {counted(len(runs), 'run')} have synthetic timings: no machine took them.")
    if job.device == "cpu":
        lines.append("No answer for GPUs: only CPU processes were measured, and what follows is about them.")
        if demand.gpu_hour_cost is not None:
            lines.append("No cost: no GPU was measured.")
    groups = job.groups
    for index, group in enumerate(groups[: 1 + MOST_CHANGES]):
        lines.append(_group_answer(job, group, demand, changed=index > 0))
    if len(groups) > 1 + MOST_CHANGES:
        lines.append(f"{len(groups) - 1 - MOST_CHANGES} more choices of what is learned from a sample: `--json`.")
    counts = sorted({each.devices for each in job.trainings})
    noun = DEVICE_WORDS[job.device]
    first = groups[0][0].configuration
    text = [line for each in lines for line in (each, "")]
    if len(counts) == 1:
        text += [
            f"Only {counted(counts[0], noun)} {'was' if counts[0] == 1 else 'were'} measured, so how many are needed "
            "is not known.",
            "",
        ]
    alone = len({each.devices for each in groups[0]}) == 1
    if first.workload.launches and alone and (len(counts) == 1 or first.workload.on_several(first.parameters)):
        missing = _missing_runs(first)
        fence = "`" * (1 + max(2, *(len(each) for line in missing for each in re.findall("`+", line)), 0))
        text += ["Missing are runs such as these:", "", f"{fence}yaml", *missing, fence, ""]
    elif len(counts) == 1:
        text += ["Missing are runs on others.", ""]
    return [*text, *_table(job, demand), *_basis(job), ""]


def _group_answer(job: Tradeoff, group: Sequence[Training], demand: Demand, changed: bool) -> str:
    """One sentence or two for trainings with the same learning."""
    head = f"If you may change {changes_words(group[0].changes)}" if changed else f"With {_reference_words(job)}"
    counted_in = [each for each in group if not each.refused]
    if not counted_in:
        known = [each for each in group if not each.unknown]
        why = _why_refused(job, known or group)
        verdict = "none meets what is asked" if len(known) == len(group) else "none is known to meet what is asked"
        return f"**{for_markdown(head)}**: {verdict}: {for_markdown(why)}."
    best = [min(own, key=lambda each: each.time_s.value) for _, own in groupby(counted_in, lambda each: each.devices)]
    words = _with_deadline(job, counted_in, best, demand, changed) if demand.deadline_s else _without(job, best, demand)
    if not changed and len({each.devices for each in group}) == 1 < len({each.devices for each in job.trainings}):
        words += f". No other number of {plural(2, DEVICE_WORDS[job.device])} was measured with these"
    return f"**{for_markdown(head)}**: {words}."


def _why_refused(job: Tradeoff, group: Sequence[Training]) -> str:
    """Why trainings do not count; on which numbers of devices, unless on all for the same reason."""
    of_count: dict[int, dict[str, None]] = {}
    for each in group:
        of_count.setdefault(each.devices, {})[each.refused or ""] = None
    counts: dict[str, list[int]] = {}
    for count, reasons in of_count.items():
        counts.setdefault(" or ".join(reasons), []).append(count)
    if len(counts) == 1:
        return next(iter(counts))
    word = DEVICE_WORDS[job.device]
    return "; ".join(f"on {listed(list(map(str, own)))} {plural(max(own), word)}: {why}" for why, own in counts.items())


def _with_deadline(
    job: Tradeoff, group: Sequence[Training], best: Sequence[Training], demand: Demand, changed: bool
) -> str:
    limit = f"for a deadline of {duration_words(demand.deadline_s)}"
    verdicts = {id(each): each.deadline(demand.deadline_s) for each in group}
    met = [each for each in group if verdicts[id(each)] == "met"]
    if not met:
        may = [each for each in group if verdicts[id(each)] == "may miss"]
        fastest = min(may or best, key=lambda each: each.time_s.value)
        which, numbers = _devices(job, fastest), _numbers(job, fastest, demand)
        if may:
            return f"{limit}: none is sure to meet it; {which} ({numbers}) may miss it"
        answer = f"{limit}: none that was measured meets it; the fastest, {which}, misses it ({numbers})"
        # A prediction is of the settings of runs, so of the reference.
        return answer if changed or job.device != "cuda" else f"{answer}. {_predict_more(job)}"
    chosen = min(met, key=lambda each: (each.device_hours, each.devices))
    parts = [f"{limit}: {_devices(job, chosen, bold=True)} ({_numbers(job, chosen, demand)})"]
    for each in best:
        if each.devices == chosen.devices:
            continue
        verdict = verdicts[id(each)]
        if verdict == "met":
            more = percent(each.device_hours / chosen.device_hours - 1, signed=True)
            time = duration_words(each.time_s.value) if each.time_s.high else _time(each)
            parts.append(f"{_devices(job, each)}: {time}, {more} {HOURS[job.device]}")
        else:
            may = "may miss it" if verdict == "may miss" else f"miss{'es' if each.devices == 1 else ''} it"
            parts.append(f"{_devices(job, each)} {may} ({_time(each)})")
    return "; ".join(parts)


def _predict_more(job: Tradeoff) -> str:
    """How to learn what more devices than any that were measured would give."""
    most = max(job.trainings, key=lambda each: each.devices)
    nodes = most.configuration["nodes"] or 1
    option = f"--devices {2 * most.devices}" + (f" --nodes {2 * nodes}" if nodes > 1 else "")
    return f"On more GPUs: `multicard predict` with your results and `{option}`"


def _without(job: Tradeoff, best: Sequence[Training], demand: Demand) -> str:
    fastest = min(best, key=lambda each: each.time_s.value)
    cheapest = min(best, key=lambda each: each.device_hours)
    if len(best) == 1:
        return f"{_devices(job, fastest, bold=True)} ({_numbers(job, fastest, demand)})"
    if fastest is cheapest:
        return f"fastest, with the fewest {HOURS[job.device]}: {_devices(job, fastest, bold=True)} " + (
            f"({_numbers(job, fastest, demand)})"
        )
    return (
        f"fastest: {_devices(job, fastest, bold=True)} ({_numbers(job, fastest, demand)}); fewest {HOURS[job.device]}: "
        f"{_devices(job, cheapest, bold=True)} ({_numbers(job, cheapest, demand)})"
    )


def _devices(job: Tradeoff, training: Training, bold: bool = False) -> str:
    devices = counted(training.devices, DEVICE_WORDS[job.device])
    naming = training.configuration.naming(training.naming)
    rivals = [
        each
        for each in job.trainings
        if each.on_front and each.devices == training.devices and each.learning == training.learning
    ]
    others = counted(len(rivals) - 1, "other") if len(rivals) > 1 else ""
    text = f"{devices} with {naming}" + (f", or {others} that may be as good" if others else "") if naming else devices
    return f"**{for_markdown(text)}**" if bold else for_markdown(text)


def _numbers(job: Tradeoff, training: Training, demand: Demand) -> str:
    parts = [_time(training), f"{number(training.device_hours)} {HOURS[job.device]}"]
    if training.energy_j:
        parts.append(with_unit(training.energy_j, ENERGY))
    if (cost := cost_of(training, demand)) is not None:
        parts.append(f"cost {number(cost)}")
    return ", ".join(parts)


def _time(training: Training) -> str:
    time = training.time_s
    ends = (None if end is None else duration_words(end) for end in (time.low, time.high))
    return f"{duration_words(time.value)} [{confidence(*ends, time.repeats)[1:-1]}]"  # stands in parentheses


def _table(job: Tradeoff, demand: Demand) -> list[str]:
    rows = job.trainings
    hidden = 0
    if len(rows) > MOST_ROWS:
        rows = [each for each in rows if each.on_front]
        hidden = len(job.trainings) - len(rows)
    rows, beyond = rows[:MOST_ROWS], len(rows[MOST_ROWS:])
    quality = demand.min_accuracy or demand.max_loss
    prices = demand.gpu_hour_cost is not None and job.device == "cuda"
    heads = ["Devices", "Configuration", "Changes", "Time", HOURS[job.device], "Energy"]
    heads += ["Cost"] * prices + ["Memory per device"] + ["Reached"] * bool(quality) + ["Verdict"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for each in rows:
        cells = [
            counted(each.devices, DEVICE_WORDS[job.device]),
            each.configuration.naming(each.naming) or UNKNOWN,
            changes_words(each.changes) or UNKNOWN,
            _time(each),
            number(each.device_hours),
            with_unit(each.energy_j, ENERGY) if each.energy_j else UNKNOWN,
        ]
        cells += [number(cost_of(each, demand))] if prices else []
        cells += [with_unit(each.memory_bytes, BYTES) if each.memory_bytes else UNKNOWN]
        cells += [UNKNOWN if each.quality is None else number(each.quality)] if quality else []
        lines.append(f"| {' | '.join(for_markdown(cell) for cell in [*cells, _verdict(each, demand)])} |")
    lines.append("")
    left_out = [f"{hidden} that others are better than"] * (hidden > 0) + [f"{beyond} more"] * (beyond > 0)
    return [*lines, f"Not shown: {', '.join(left_out)}.", ""] if left_out else lines


def _verdict(training: Training, demand: Demand) -> str:
    if training.refused:
        return f"{'unknown' if training.unknown else 'excluded'}: {training.refused}"
    front = "" if training.on_front else "others are better"
    met = {"met": "meets the deadline", "may miss": "may miss the deadline", "missed": "misses the deadline"}
    in_time = met[training.deadline(demand.deadline_s)] if demand.deadline_s else ""
    in_time += " by one repeat" if in_time and training.time_s.high is None else ""
    runs, completed = len(training.configuration.runs), len(training.configuration.completed)
    lost = f"{completed} of {counted(runs, 'run')} completed" if completed < runs else ""
    return "; ".join(filter(None, (in_time, front or (not in_time and "none is shown to be better"), lost)))


def _lost(job: Tradeoff) -> list[str]:
    """Configurations of which no run completed, and why."""
    words = [f"{each.words()}: {lost_words(each)}" for each in job.lost[:MOST_ROWS]]
    words += [f"{len(job.lost) - MOST_ROWS} more: `--json`"] if len(job.lost) > MOST_ROWS else []
    if not words:
        return []
    return ["Excluded, since no run of them completed:", "", *(f"- {for_markdown(each)}" for each in words), ""]


def _basis(job: Tradeoff) -> list[str]:
    """What the numbers rest on."""
    lines = [f"The training: {length_words(job)}."]
    windows = [each.measured_s for each in job.trainings if each.measured_s]
    if windows:
        least, longest = min(windows), max(each.time_s.value for each in job.trainings)
        lines.append(
            f"Throughput was measured over {duration_words(least)} or more, and is taken to stay what it was"
            + (f" in a training up to {number(longest / least)} times as long" if longest > least else "")
            + "; start, tests and saving are not included."
        )
    if not any(each.energy_j for each in job.trainings):
        why = "a CPU has no meter" if job.device == "cpu" else "the GPUs were not metered"
        lines.append(f"Energy: not recorded ({why}).")
    alone = sum(each.time_s.repeats == 1 for each in job.trainings)
    if alone:
        lines.append(f"{counted(alone, 'configuration')} with one repeat: no interval, and nothing is shown worse.")
    runs = [run for each in job.trainings for run in each.configuration.completed]
    doubts = {kind: sum(notice(run.values) is not None for run in runs) for kind, notice in NOTICES.items()}
    caveats = [f"{kind} ({count} of {counted(len(runs), 'run')})" for kind, count in doubts.items() if count]
    return [" ".join([*lines, *([f"Caveats: {', '.join(caveats)}."] if caveats else [])])]


def _missing_runs(configuration: Configuration) -> list[str]:
    """A scenario that measures the same on other numbers of devices, as YAML."""
    import yaml

    left_out = ("devices", "nodes")
    stated = {
        name: value
        for name, value in configuration.parameters.items()
        if value is not None and name not in left_out and value != configuration.default(name)
    }
    if isinstance(stated.get("command"), str):
        stated["command"] = shlex.split(stated["command"])
    counts = sorted({1, 2, 4, configuration["devices"]})
    stated |= {"device": configuration["device"], "workload": configuration["workload"]}
    fixed = nested(stated | configuration.workload.on_several(configuration.parameters))
    scenario = {
        "question": "How many devices does it need?",
        "fixed": fixed,
        "vary": {"devices": counts},
        "repeats": 3,
        "figures": ["tradeoff", "speedup"],
    }
    text = yaml.safe_dump({"scenarios": {"how_many": scenario}}, sort_keys=False, allow_unicode=True, width=100)
    return text.rstrip().splitlines()


def _reference_words(job: Tradeoff) -> str:
    """What the reference learns with, less what is as always: its defaults, unless others change them."""
    first = job.trainings[0]
    configuration = first.configuration
    told = {name for each in job.trainings for name in each.changes}
    told |= set(configuration.workload.parameters.HEADLINE)
    shown = {
        name: value
        for name, value in first.learning.items()
        if name in told or name not in configuration.parameters or value != configuration.default(name)
    }
    return learning_words(shown)
