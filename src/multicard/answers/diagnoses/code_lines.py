"""Diagnoses of lines of the user's code that take time in no phase of a step, or between a batch and the model.

The ranks of a run sample where the thread that trains is (`observe.stack_samples`); `results` gathers the samples in
the table `code_lines`. Phases are timed: where the host's time of a phase is known, it is divided among the lines by
the samples in it that show one. Of 100 samples 30 are outside of the phases, which take 40% of the time by the clock.
24 of them are at one line, 6 at another one; 10 more came too late to show where. So the first line takes 24 / 30 of
40%, which is 32% of a step.

Where that time is not known, a share is of all samples. As those that came too late show no line, it is then at most
too small: 24% in this example.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from multicard.answers.bottlenecks.bottlenecks import LEAST, mean_parts
from multicard.answers.diagnoses.diagnosis import OUTSIDE, Diagnosis
from multicard.answers.diagnoses.host_work import WorkOfSteps, work_of
from multicard.core.layout import BACKWARD, BETWEEN_PASSES, EVALUATION, FORWARD, OPTIMIZER, PHASES, TRANSFER
from multicard.core.units import SECONDS, percent, with_unit
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.stats.interval import Interval
from multicard.stats.proportion import proportion

# A line stands for its function if it has at least this share of the function's samples, and what it calls for the line
# likewise.
MAINLY = 0.5
# The same of a function that does nothing in the phases of computing: then all of it may be done without, not a line.
NEARLY_ALL_OF_FUNCTION = 0.9
# Lines in which the phases of computing have this share of all samples drive the training, as `trainer.fit()` does.
DRIVES = 0.2
COMPUTING = (FORWARD, BACKWARD, OPTIMIZER)
# Shares of lines are called lower bounds, or approximate, if fewer of the samples than this show a line.
NEARLY_ALL = 0.9
# A line whose share follows from the time of its phase is told if it has so many samples or more.
FEWEST_SAMPLES = 3
# At most so many lines are told of a part of a step.
MOST_TOLD = 2
# A line of a phase is told if it surely takes this share of the phase.
LEAST_OF_PHASE = 0.2
# Work of the host that explains this share of a part, or of a line, is told in place of the line.
EXPLAINED = 0.5

_OUTSIDE = "outside of loader, forward, backward and optimizer"
_BEFORE_MODEL = "between the batch and the first call of the model"
_IN_DATA_SET = "this preparation of data in the data set, so that workers of the loader do it"
# What to do about a line, by the beginnings of names of functions that it calls.
_REMEDIES = {
    ("copy.",): "an update in place, as by `torch.optim.swa_utils.AveragedModel`, instead of a copy",
    ("json.", "csv.", "logging.", "pickle.", "yaml.", "tqdm.", "wandb.", "mlflow.", "torch.utils.tensorboard.",
     "tensorboard", "matplotlib.", "pandas."): "less frequent logging, or a thread that writes",
    ("PIL.", "cv2.", "torchvision.transforms.", "torchvision.io.", "albumentations.", "transformers.tokenization"):
        _IN_DATA_SET,
    ("torch.profiler.", "torch.autograd.profiler"): "no profiler, or one with a `schedule` of a few steps",
}  # fmt: skip
_OTHERWISE = "less work at {}, or in one of many steps only"
# Functions that copy the state of a model or of an optimizer.
_STATE = (".state_dict", ".load_state_dict")
# The function of a script's own lines.
_MODULE = "<module>"
# Where the iterators of loaders wait for their workers.
_LOADER = "torch.utils.data."


@dataclass(frozen=True)
class CodePlace:
    """A line of the user's code, or several of one function, in one phase of the steps. Made by `places_of`.

    Numbers are of one rank, the one that has most samples in the phase, over all repeats.
    """

    phase: str | None
    file: str
    lines: tuple[int, ...]
    function: str
    # Function of a library that the line calls, such as `json.dump`; None if it is not written in Python, or if most of
    # the samples are elsewhere.
    called: str | None
    samples: int
    # Share of the step that is spent here, from 0 to 1.
    share: Interval
    # True if it follows from the time of the phase (see the module).
    is_timed: bool
    # Seconds of a step that are spent here.
    seconds: float
    # Share of the samples in any phase of computing, of those of these lines.
    computing: float

    @property
    def words(self) -> str:
        """The place in words: "train.py, line 57 (`log_metrics`, in `json.dump`)"."""
        within = [f"`{self.function}`"] if self.function else []
        within += [f"in `{self.called}`"] if self.called else []
        return f"{self.position} ({', '.join(within)})" if within else self.position

    @property
    def position(self) -> str:
        """File and line in words: "train.py, line 57"."""
        first, last = min(self.lines), max(self.lines)
        return f"{self.file}, {f'line {first}' if first == last else f'lines {first} to {last}'}"

    @property
    def drives_training(self) -> bool:
        """True if the passes of the model run within these lines, too."""
        return self.computing >= DRIVES or self.function.rpartition(".")[2] == "forward"


def places_of(configuration: Configuration, results: Results, phase: str | None) -> list[CodePlace]:
    """Return the places in a phase (None: in no phase) of the steps of a configuration, that with most samples first.

    Lines of one function are one place, unless one of them has most of the samples; a comprehension belongs to the
    function that it is in.
    """
    rows = _rows_of(configuration, results)
    step_s = configuration.mean("iteration_time_s")
    if rows.empty or step_s is None:
        return []
    rows = _of_one_rank(rows, phase)
    total = _total(rows)
    seen, phase_share = _seen_and_timed(configuration, results, rows, phase)
    is_timed = bool(phase_share and seen)
    all_phases = rows.dropna(subset=["site"])
    all_phases = all_phases.assign(named=[_name(function) or function for function in all_phases["function"]])
    in_phase = all_phases[_is_phase(all_phases, phase)]
    places = []
    for (file, function), of_function in in_phase.groupby(["file", "named"], sort=False):
        by_line = of_function.groupby("line")["samples_there"].sum().sort_values(ascending=False)
        elsewhere = all_phases[(all_phases["file"] == file) & (all_phases["named"] == function)]
        computes = function == _MODULE or elsewhere["phase"].isin(COMPUTING).any()
        mainly = MAINLY if computes else NEARLY_ALL_OF_FUNCTION
        has_one_line = by_line.iloc[0] >= mainly * by_line.sum()
        lines = tuple(int(line) for line in (by_line.index[:1] if has_one_line else by_line.index))
        there = of_function[of_function["line"].isin(lines)]
        samples = int(there["samples_there"].sum())
        anywhere = all_phases[(all_phases["file"] == file) & all_phases["line"].isin(lines)]
        computing = anywhere[anywhere["phase"].isin(COMPUTING)]
        share = (
            proportion(samples, seen).map(lambda part: part * phase_share) if is_timed else proportion(samples, total)
        )
        places.append(
            CodePlace(
                phase=phase,
                file=str(file),
                lines=lines,
                function=_name(str(function)),
                called=_mainly_called(there),
                samples=samples,
                share=share,
                is_timed=is_timed,
                seconds=share.value * step_s,
                computing=float(computing["samples_there"].sum() / anywhere["samples_there"].sum()),
            )
        )
    return sorted(places, key=lambda place: -place.samples)


def model_calls_outside(configuration: Configuration, results: Results) -> list[tuple[str, int, Interval, float]]:
    """Return where the user's code calls the model outside of the phases of a step, that with the most samples first.

    For each line its file and number ("train.py:12"), its samples, the share of the step that the model takes there,
    and the seconds of a step. The model is what computes in the forward passes of training, too: a module that does
    not, such as a metric, is none. The result is empty on GPUs, whose time the host's is not, and without steps.
    """
    rows, step_s = _rows_of(configuration, results), configuration.mean("iteration_time_s")
    if rows.empty or step_s is None:
        return []
    rows = _of_one_rank(rows, None)
    seen, phase_share = _seen_and_timed(configuration, results, rows, None)
    if not phase_share:
        return []
    trained = rows.loc[rows["phase"] == FORWARD, ["file", "function"]].drop_duplicates()
    of_model = rows[_is_phase(rows, None) & rows["caller"].notna()].merge(trained, on=["file", "function"])
    samples = of_model.groupby("caller")["samples_there"].sum().sort_values(ascending=False)
    calls = []
    for caller, there in samples.items():
        share = proportion(int(there), seen).map(lambda part: part * phase_share)
        calls.append((str(caller), int(there), share, share.value * step_s))
    return calls


def line_between_passes(configuration: Configuration, results: Results) -> tuple[str, str] | None:
    """Return the line that takes most of the time between two passes over the data: its site, and its function.

    A line within a model stands for the one that called the model, whose function is not known ("").
    None if samples show no such line.
    """
    table = results.table("code_lines")
    is_between = table["phase"] == BETWEEN_PASSES
    rows = table[is_between & table["run"].isin([run.run for run in configuration.completed])]
    site = rows["caller"].fillna(rows["site"])
    function = rows["function"].where(rows["caller"].isna(), "").fillna("")
    samples = rows.groupby([site, function])["samples_there"].sum()
    if samples.empty or samples.max() < max(FEWEST_SAMPLES, MAINLY * rows["samples_there"].sum()):
        return None
    at_site, of_function = samples.idxmax()
    return str(at_site), _name(str(of_function))


def _rows_of(configuration: Configuration, results: Results) -> pd.DataFrame:
    """Return the rows of the table `code_lines` of the completed runs of a configuration, with `file` and `line`."""
    table = results.table("code_lines")
    is_of_step = table["phase"] != BETWEEN_PASSES
    rows = table[is_of_step & table["run"].isin([run.run for run in configuration.completed])]
    # Archives leave out all sites.
    parts = rows["site"].astype("string").str.extract(r"^(.*):(\d+)$")
    return rows.assign(file=parts[0], line=pd.to_numeric(parts[1], errors="coerce"))


def _of_one_rank(rows: pd.DataFrame, phase: str | None) -> pd.DataFrame:
    """Return the rows of the rank with the largest share of its samples in the phase, because others wait for it."""
    shares = {
        rank: of_rank.loc[_is_phase(of_rank, phase), "samples_there"].sum() / _total(of_rank)
        for rank, of_rank in rows.groupby("rank")
    }
    return rows[rows["rank"] == max(shares, key=shares.__getitem__)]


def _is_phase(rows: pd.DataFrame, phase: str | None) -> pd.Series:
    return rows["phase"].isna() if phase is None else rows["phase"] == phase


def _seen_and_timed(
    configuration: Configuration, results: Results, rows: pd.DataFrame, phase: str | None
) -> tuple[int, float]:
    """Return the number of samples of a rank in a phase that show where it was, and the share of its time there.

    `rows`: those of one rank. The share is 0 if the host's time of the phase is not known: on GPUs, or without steps.
    Between a batch and the first module samples have the phase `TRANSFER`; its time is a part of the forward pass,
    with whose samples they are counted.
    """
    steps = results.table("steps")
    is_measured = steps["run"].isin(rows["run"].unique()) & (steps["window"] == "measured")
    of_rank = steps[is_measured & (steps["rank"] == rows["rank"].iloc[0])]
    counted = rows[_is_phase(rows, phase)]
    total_s = of_rank["duration_s"].sum()
    if configuration["device"] != "cpu" or not total_s:
        return int(counted["samples_there"].sum()), 0.0
    if phase is None:
        phase_s = total_s - sum(of_rank[f"{name}_s"].sum() for name in (*PHASES, EVALUATION))
    elif phase == TRANSFER:
        counted = rows[rows["phase"].isin([TRANSFER, FORWARD])]
        phase_s = of_rank["forward_s"].sum()
    else:
        phase_s = of_rank[f"{phase}_s"].sum()
    return int(counted["samples_there"].sum()), max(0.0, float(phase_s / total_s))


def _total(rows: pd.DataFrame) -> int:
    """Return the number of samples of the ranks in these rows, of any phase, with those that show no line."""
    return int(rows.drop_duplicates(["run", "rank"])["stack_samples"].sum())


def _mainly_called(rows: pd.DataFrame) -> str | None:
    """Return the function that most of the samples are in; None if these are in none, or in different ones."""
    by_function = rows.groupby("called")["samples_there"].sum()
    if by_function.empty or by_function.max() < MAINLY * rows["samples_there"].sum():
        return None
    return str(by_function.idxmax())


def _name(function: str) -> str:
    """Return the name by which the user knows a function; empty for a module.

    >>> _name("main.<locals>.log"), _name("log.<locals>.<listcomp>"), _name("<module>"), _name("Set.__getitem__")
    ('log', 'log', '', 'Set.__getitem__')
    """
    parts = [part for part in function.split(".<locals>.") if not part.startswith("<")]
    return parts[-1] if parts else ""


def diagnoses(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield the lines that take most of what a step spends outside of its phases, or before the model is called."""
    yield from _outside_of_phases(configuration, results)
    yield from _before_the_model(configuration, results)


def _before_the_model(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield the lines that take time between a batch and the first call of a module, as those that augment it do.

    On GPUs a line may wait there for the GPU, so that there is no diagnosis.
    """
    if configuration["device"] != "cpu":
        return
    places = [place for place in places_of(configuration, results, TRANSFER) if not place.drives_training]
    for place in places[:MOST_TOLD]:
        if _is_told(place):
            share = _share_words(place, _shows_nearly_all(configuration, results))
            yield Diagnosis(f"{share} is at {place.words}, {_BEFORE_MODEL}", _IN_DATA_SET, place.share.value)


def _outside_of_phases(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield the lines that take most of what a step spends outside of its phases, unless the host's work explains it.

    On GPUs only as far as they are idle for the host, and only calls of other libraries than PyTorch: another line may
    wait for the GPU.
    """
    step_s = configuration.mean("iteration_time_s")
    is_gpu = configuration["device"] != "cpu"
    part = mean_parts(configuration).get(StepPart.HOST_ELSEWHERE if is_gpu else StepPart.OTHER, 0.0)
    # Where the forward pass is not known, it is outside of the phases, too.
    if step_s is None or part < LEAST or not configuration.mean("forward_s"):
        return
    work = [piece for piece in work_of(configuration, results) if piece.phase is None]
    if sum(piece.seconds for piece in work) >= EXPLAINED * part * step_s:
        return
    places = [place for place in places_of(configuration, results, None) if not place.drives_training]
    for place in places[:MOST_TOLD]:
        is_known_work = _work_at(place, work) >= EXPLAINED * place.seconds
        may_wait = is_gpu and (place.called is None or place.called.startswith("torch."))
        if not _is_told(place) or is_known_work or may_wait:
            continue
        evidence = f"{_share_words(place, _shows_nearly_all(configuration, results))} is at {place.words}, {_OUTSIDE}"
        if is_gpu:
            evidence += f", and for {percent(part)} the GPU is idle while the host makes no GPU call"
        yield Diagnosis(evidence, _remedy(place), min(place.share.value, part), phase=OUTSIDE)


def place_of_long_steps(configuration: Configuration, results: Results, share: float) -> CodePlace | None:
    """Return the place of what long steps take outside of the phases; None if it is not known.

    `share`: of the time, what they take so. Samples do not tell of which step they are. So the place takes more than
    all steps spend outside of the phases besides, and half of what the long ones take or more.
    """
    places = [place for place in places_of(configuration, results, None) if not place.drives_training]
    if not places or not places[0].is_timed or places[0].samples < FEWEST_SAMPLES:
        return None
    rows = _of_one_rank(_rows_of(configuration, results), None)
    _, outside = _seen_and_timed(configuration, results, rows, None)
    low = places[0].share.low or 0.0
    is_certain = low > max(0.0, outside - share) and places[0].share.value >= MAINLY * share
    return places[0] if is_certain else None


def _is_told(place: CodePlace) -> bool:
    """Return True if a place surely takes `LEAST` of the time."""
    return (place.share.low or 0.0) >= LEAST and (not place.is_timed or place.samples >= FEWEST_SAMPLES)


def _work_at(place: CodePlace, work: Sequence[WorkOfSteps]) -> float:
    """Return the seconds of a step that the host's work takes at these lines."""
    sites = {f"{place.file}:{line}" for line in place.lines}
    return sum(piece.seconds for piece in work if piece.site in sites)


def _shows_nearly_all(configuration: Configuration, results: Results) -> bool:
    rows = _rows_of(configuration, results)
    return bool(rows["samples_there"].sum() >= NEARLY_ALL * _total(rows))


def _share_words(place: CodePlace, is_whole: bool) -> str:
    """Return the share with its interval and time: "65% of a step (13.0 ms; 95% CI 55% to 74% by 83 samples)"."""
    low, high = percent(place.share.low or 0.0), percent(place.share.high or 1.0)
    uncertain = "about " if place.is_timed else "at least "
    least = "" if is_whole else uncertain
    share = percent(place.share.value)
    return f"{least}{share} of a step ({with_unit(place.seconds, SECONDS)}; 95% CI {low} to {high}, n={place.samples})"


def _remedy(place: CodePlace) -> str:
    return remedy_of_call(place) or _OTHERWISE.format(place.position)


def remedy_of_call(place: CodePlace) -> str | None:
    """Return what to do about the library function that a place calls; None if there is nothing better than less."""
    called = place.called or ""
    if called.endswith(_STATE):
        called = "copy."
    return next((remedy for names, remedy in _REMEDIES.items() if called.startswith(names)), None)


def lines_in_words(configuration: Configuration, results: Results, phase: str, name: str) -> str | None:
    """Return which lines of the user's code take most of a phase; None if that is not known.

    `name`: of the phase in a sentence. For example, `lines_in_words(configuration, results, "data", "the loading")` is
    "80% of the loading is at data.py, line 31 (`Images.__getitem__`)" where the thread that trains loads by itself.
    """
    phase_s, step_s = configuration.mean(f"{phase}_s"), configuration.mean("iteration_time_s")
    rows = _rows_of(configuration, results)
    if rows.empty or not phase_s or not step_s:
        return None
    of_rank = _of_one_rank(rows, phase)
    seen = int(of_rank.loc[_is_phase(of_rank, phase), "samples_there"].sum())
    # Samples that show no line may be of this phase, of which the clock knows how many there should be.
    samples = max(seen, round(_total(of_rank) * phase_s / step_s))
    told = []
    for place in places_of(configuration, results, phase)[:MOST_TOLD]:
        is_waiting = place.called is not None and place.called.startswith(_LOADER)
        share = proportion(place.samples, samples)
        if (share.low or 0.0) >= LEAST_OF_PHASE and not is_waiting and not place.drives_training:
            told.append(f"{percent(share.value)} of {name} is at {place.words}")
    return " and ".join(told) or None


@dataclass(frozen=True)
class GrownPlace:
    """A place that takes longer than in the ideal step, by so many `seconds`. Made by `grown_places`."""

    place: CodePlace
    seconds: float


def grown_places(
    configuration: Configuration, baseline: Configuration, work_share: float, results: Results
) -> list[GrownPlace]:
    """Return the places outside of the phases that surely take longer than in the ideal step, the longest first.

    `work_share`: as of `growth.Growth`. The result is empty for GPUs, because the host's time is not theirs.
    """
    step_s, ideal_s = configuration.mean("iteration_time_s"), baseline.mean("iteration_time_s")
    has_forward = configuration.mean("forward_s") and baseline.mean("forward_s")
    if configuration["device"] != "cpu" or step_s is None or ideal_s is None or not has_forward:
        return []
    rows = _rows_of(baseline, results)
    if rows.empty:
        return []
    before = {(place.file, place.function): place.share for place in places_of(baseline, results, None)}
    nowhere = proportion(0, _total(rows))
    grown = []
    for place in places_of(configuration, results, None):
        share = before.get((place.file, place.function), nowhere)
        surely_s = (place.share.low or 0.0) * step_s - (share.high or 1.0) * ideal_s * work_share
        if surely_s > 0 and not place.drives_training:
            grown.append(GrownPlace(place, place.seconds - share.value * ideal_s * work_share))
    return sorted(grown, key=lambda grown_place: -grown_place.seconds)
