"""Samples of one rank's stack in one phase of its steps, and the share of a step that they stand for.

The ranks of a run sample where the thread that trains is (`observe.stack_samples`); `results` gathers the samples in
the table `code_lines`. Phases are timed: where the host's time of a phase is known, it is divided among the lines by
the samples in it that show one. Of 100 samples 30 are outside of the phases, which take 40% of the time by the clock.
24 of them are at one line, 6 at another one; 10 more came too late to show where. So the first line takes 24 / 30 of
40%, which is 32% of a step.

Where that time is not known, a share is of all samples. As those that came too late show no line, it is then at most
too small: 24% in this example.
"""

from dataclasses import dataclass

import pandas as pd

from multicard.core.layout import BETWEEN_PASSES, EVALUATION, FORWARD, PHASES, TRANSFER
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.stats.interval import Interval
from multicard.stats.proportion import proportion

# A line whose share follows from the time of its phase is reported if it has so many samples or more.
FEWEST_SAMPLES = 3


@dataclass(frozen=True)
class PhaseSamples:
    """The samples of one rank, and how they divide the time that its steps spend in one phase.

    Made by `samples_in_phase`. Numbers are over all repeats.
    """

    # The phase; None for the time of a step that is in no phase.
    phase: str | None
    # The rows of the rank in `sample_rows`, in all phases.
    rows: pd.DataFrame
    # Number of samples of the rank, in any phase, with those that came too late to show a line.
    total: int
    # Number of samples by which the time of the phase is divided: those that show where the thread was.
    seen: int
    # Share of the rank's time that the phase takes by the clock, from 0 to 1; None if it is not known.
    phase_share: float | None

    @property
    def in_phase(self) -> pd.DataFrame:
        """The rows of the phase."""
        return self.rows[is_phase(self.rows, self.phase)]

    @property
    def is_timed(self) -> bool:
        """True if shares follow from the time of the phase; False if they are of all samples (see the module)."""
        return bool(self.phase_share and self.seen)

    def share_of(self, samples: int) -> Interval:
        """Return the share of a step, from 0 to 1, that some samples in the phase stand for."""
        if not self.is_timed:
            return proportion(samples, self.total)
        phase_share = self.phase_share or 0.0
        return proportion(samples, self.seen).map(lambda share_of_phase: share_of_phase * phase_share)


def samples_in_phase(configuration: Configuration, results: Results, phase: str | None) -> PhaseSamples | None:
    """Return the samples for one phase (None: for no phase) of the steps of a configuration; None if there are none.

    They are of the rank with the largest share of its samples in the phase, because the others wait for this rank.
    """
    all_rows = sample_rows(configuration, results)
    if all_rows.empty:
        return None
    share_by_rank = {}
    for rank, rank_rows in all_rows.groupby("rank"):
        samples_there = rank_rows.loc[is_phase(rank_rows, phase), "samples_there"].sum()
        share_by_rank[rank] = samples_there / sample_count(rank_rows)
    awaited_rank = max(share_by_rank, key=share_by_rank.__getitem__)
    rows = all_rows[all_rows["rank"] == awaited_rank]
    phase_share = _phase_share(configuration, results, rows, phase)
    dividing = is_phase(rows, phase)
    if phase == TRANSFER and phase_share is not None:
        # The phase has no time of its own: see `_phase_share`.
        dividing = rows["phase"].isin([TRANSFER, FORWARD])
    seen = int(rows.loc[dividing, "samples_there"].sum())
    return PhaseSamples(phase, rows, sample_count(rows), seen, phase_share)


def _phase_share(configuration: Configuration, results: Results, rows: pd.DataFrame, phase: str | None) -> float | None:
    """Return the share of the measured time that one rank spends in a phase, by the clock of its host.

    `rows`: samples of that rank. None on GPUs, whose time the host's is not, and without steps.
    """
    steps = results.table("steps")
    is_measured = steps["run"].isin(rows["run"].unique()) & (steps["window"] == "measured")
    rank_steps = steps[is_measured & (steps["rank"] == rows["rank"].iloc[0])]
    total_s = rank_steps["duration_s"].sum()
    if configuration["device"] != "cpu" or not total_s:
        return None
    if phase is None:
        phase_s = total_s - sum(rank_steps[f"{name}_s"].sum() for name in (*PHASES, EVALUATION))
    elif phase == TRANSFER:
        # Between a batch and the first module, samples have this phase. The clock counts that as forward pass.
        phase_s = rank_steps["forward_s"].sum()
    else:
        phase_s = rank_steps[f"{phase}_s"].sum()
    return max(0.0, float(phase_s / total_s))


def sample_rows(configuration: Configuration, results: Results) -> pd.DataFrame:
    """Return the rows of the table `code_lines` that are in steps of the completed runs of a configuration.

    Each has the columns `file` and `line`, besides; both are empty if it has no site, as in archives.
    """
    table = results.table("code_lines")
    is_of_step = table["phase"] != BETWEEN_PASSES
    rows = table[is_of_step & table["run"].isin([run.run for run in configuration.completed])]
    sites = rows["site"].astype("string").str.extract(r"^(.*):(\d+)$")
    return rows.assign(file=sites[0], line=pd.to_numeric(sites[1], errors="coerce"))


def is_phase(rows: pd.DataFrame, phase: str | None) -> pd.Series:
    """Return True for each row of the phase, where None stands for no phase."""
    return rows["phase"].isna() if phase is None else rows["phase"] == phase


def sample_count(rows: pd.DataFrame) -> int:
    """Return the number of samples of the ranks in these rows, of any phase, with those that show no line."""
    # Each row of a rank states the number of all samples of that rank.
    ranks = rows.drop_duplicates(["run", "rank"])
    return int(ranks["stack_samples"].sum())
