"""Diagnosis of time between two passes over the data, which is in no step, such as a loader that is made again.

A pass of 10 steps of 60 ms takes 600 ms. If 300 ms come between two of them, they are 300 / 900 of the time.
"""

from collections.abc import Iterator
from statistics import fmean

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.host.host_work import place
from multicard.answers.diagnoses.user_code.code_places import MAIN_SHARE, function_name
from multicard.answers.diagnoses.user_code.phase_samples import FEWEST_SAMPLES
from multicard.core.layout import BETWEEN_PASSES
from multicard.core.units import SECONDS, number, percent, with_unit
from multicard.results.configuration import Configuration, MeasuredRun
from multicard.results.results import Results

_REMEDY = (
    "less between two passes over the data (data sets and loaders made once, evaluation and saving after several "
    "passes), or longer passes"
)


def diagnoses(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield what the time between two passes takes, if it takes `LEAST` of the time or more."""
    shares = [share for run in configuration.completed if (share := _share(run)) is not None]
    between_s = configuration.mean("between_passes_s")
    if not shares or between_s is None or fmean(shares) < LEAST:
        return
    share = fmean(shares)
    steps = configuration.mean("steps_per_pass")
    of_steps = f" of {number(round(steps, 1))} steps" if steps else ""
    evidence = (
        f"between two passes{of_steps} it takes {with_unit(between_s, SECONDS)}, which is in no step ({percent(share)} "
        "of the time)"
    )
    line = _main_line(configuration, results)
    if line is not None:
        site, function = line
        evidence += f", mostly{place(site, ' at ', '')}{f' (`{function}`)' if function else ''}"
    yield Diagnosis(evidence, _REMEDY, share)


def _share(run: MeasuredRun) -> float | None:
    """Return the share of the time that the time between passes takes; None if the measured steps are of one pass.

    It is that of whole passes, if their length is known: the measured steps may hold more or fewer ends of passes.
    """
    between_s, step_s = run.number("between_passes_s"), run.number("iteration_time_s")
    passes, steps = run.number("measured_passes"), run.number("measured_steps")
    if between_s is None or step_s is None or passes is None or steps is None or passes < 2:
        return None
    steps_per_pass = run.number("steps_per_pass") or steps / (passes - 1)
    return max(0.0, between_s) / (max(0.0, between_s) + steps_per_pass * step_s)


def _main_line(configuration: Configuration, results: Results) -> tuple[str, str] | None:
    """Return the line that takes most of the time between two passes: its site ("train.py:12"), and its function.

    A line within a model stands for the one that called the model, whose function is not known ("").
    None if samples of the stack show no such line.
    """
    table = results.table("code_lines")
    is_between = table["phase"] == BETWEEN_PASSES
    rows = table[is_between & table["run"].isin([run.run for run in configuration.completed])]
    is_outside_of_models = rows["caller"].isna()
    site = rows["caller"].fillna(rows["site"])
    function = rows["function"].where(is_outside_of_models, "").fillna("")
    samples = rows.groupby([site, function])["samples_there"].sum()
    least = max(FEWEST_SAMPLES, MAIN_SHARE * rows["samples_there"].sum())
    if samples.empty or samples.max() < least:
        return None
    main_site, main_function = samples.idxmax()
    return str(main_site), function_name(str(main_function))
