"""Places in the user's code where a rank spends its time, by samples of its stack (`phase_samples`)."""

from dataclasses import dataclass

import pandas as pd

from multicard.answers.diagnoses.user_code.phase_samples import PhaseSamples, is_phase, samples_in_phase
from multicard.core.layout import BACKWARD, FORWARD, OPTIMIZER
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.stats.interval import Interval

# A line stands for its function if it has at least this share of the function's samples, and what it calls for the line
# likewise.
MAIN_SHARE = 0.5
# A function that does nothing in the phases of computing can be left out as a whole. So one of its lines stands for it
# only with this share of its samples.
NEARLY_ALL_OF_FUNCTION = 0.9
# Lines in which the phases of computing have this share of all samples drive the training, as `trainer.fit()` does.
DRIVING_SHARE = 0.2
COMPUTING_PHASES = (FORWARD, BACKWARD, OPTIMIZER)

# The function of a script's own lines.
_MODULE = "<module>"


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
    # True if it follows from the time of the phase (`PhaseSamples.is_timed`).
    is_timed: bool
    # Seconds of a step that are spent here.
    seconds: float
    # The lines may have samples in other phases, too: the share of all these that is in `COMPUTING_PHASES`.
    computing_share: float

    @property
    def words(self) -> str:
        """The place in words: "train.py, line 57 (`log_metrics`, in `json.dump`)"."""
        functions = [f"`{self.function}`"] if self.function else []
        functions += [f"in `{self.called}`"] if self.called else []
        return f"{self.position} ({', '.join(functions)})" if functions else self.position

    @property
    def position(self) -> str:
        """File and line in words: "train.py, line 57"."""
        first, last = min(self.lines), max(self.lines)
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        return f"{self.file}, {lines}"

    @property
    def drives_training(self) -> bool:
        """True if the passes of the model run within these lines, too."""
        is_forward_of_module = self.function.rpartition(".")[2] == "forward"
        return is_forward_of_module or self.computing_share >= DRIVING_SHARE


def places_of(configuration: Configuration, results: Results, phase: str | None) -> list[CodePlace]:
    """Return the places in a phase (None: in no phase) of the steps of a configuration, that with most samples first.

    Lines of one function are one place, unless one of them has most of the samples; a comprehension belongs to the
    function that it is in.
    """
    samples = samples_in_phase(configuration, results, phase)
    step_s = configuration.mean("iteration_time_s")
    if samples is None or step_s is None:
        return []
    at_lines = samples.rows.dropna(subset=["site"])
    names = [function_name(function) or function for function in at_lines["function"]]
    at_lines = at_lines.assign(named_function=names)
    in_phase = at_lines[is_phase(at_lines, phase)]
    places = [
        _place_in_function(samples, at_lines, function_rows, step_s)
        for _, function_rows in in_phase.groupby(["file", "named_function"], sort=False)
    ]
    return sorted(places, key=lambda place: -place.samples)


def _place_in_function(
    samples: PhaseSamples, at_lines: pd.DataFrame, function_rows: pd.DataFrame, step_s: float
) -> CodePlace:
    """Return the lines of a function that stand for the time that it takes in a phase.

    `at_lines`: rows of samples at any line, in all phases. `function_rows`: those of the function, in the phase.
    """
    file = str(function_rows["file"].iloc[0])
    function = str(function_rows["named_function"].iloc[0])
    in_file = at_lines[at_lines["file"] == file]

    function_phases = in_file.loc[in_file["named_function"] == function, "phase"]
    computes = function == _MODULE or bool(function_phases.isin(COMPUTING_PHASES).any())
    lines = _standing_lines(function_rows, MAIN_SHARE if computes else NEARLY_ALL_OF_FUNCTION)
    place_rows = function_rows[function_rows["line"].isin(lines)]
    place_samples = int(place_rows["samples_there"].sum())

    in_all_phases = in_file[in_file["line"].isin(lines)]
    computing = in_all_phases[in_all_phases["phase"].isin(COMPUTING_PHASES)]
    computing_share = computing["samples_there"].sum() / in_all_phases["samples_there"].sum()
    share = samples.share_of(place_samples)
    return CodePlace(
        phase=samples.phase,
        file=file,
        lines=lines,
        function=function_name(function),
        called=_mainly_called(place_rows),
        samples=place_samples,
        share=share,
        is_timed=samples.is_timed,
        seconds=share.value * step_s,
        computing_share=float(computing_share),
    )


def _standing_lines(function_rows: pd.DataFrame, least_share: float) -> tuple[int, ...]:
    """Return the one line that has `least_share` of a function's samples or more; without one, all of its lines.

    The lines with most samples come first.
    """
    by_line = function_rows.groupby("line")["samples_there"].sum().sort_values(ascending=False)
    lines = tuple(int(line) for line in by_line.index)
    has_main_line = by_line.iloc[0] >= least_share * by_line.sum()
    return lines[:1] if has_main_line else lines


def _mainly_called(rows: pd.DataFrame) -> str | None:
    """Return the function that most of the samples are in; None if these are in none, or in different ones."""
    by_function = rows.groupby("called")["samples_there"].sum()
    if by_function.empty or by_function.max() < MAIN_SHARE * rows["samples_there"].sum():
        return None
    return str(by_function.idxmax())


def function_name(function: str) -> str:
    """Return the name by which the user knows a function; empty for a module.

    >>> function_name("main.<locals>.log"), function_name("log.<locals>.<listcomp>"), function_name("<module>")
    ('log', 'log', '')
    >>> function_name("Set.__getitem__")
    'Set.__getitem__'
    """
    names = [part for part in function.split(".<locals>.") if not part.startswith("<")]
    return names[-1] if names else ""
