"""What is predicted from results, as tables."""

from collections.abc import Sequence

from multicard.analysis.evidence import Evidence
from multicard.analysis.scaling.prediction import Check
from multicard.analysis.scaling.series import checked_line, checks_table, predictions_table, series


class Predictions:
    """What is predicted of every configuration, and how predictions of measured runs turn out.

    Attributes
    ----------
    predictions
        One row per configuration and number of devices: `step_time_s`, `throughput_per_s` and `speedup` with `…_low`
        and `…_high`, the `measured` numbers of devices that it is made from, `caveats`, or the `reason` why there is
        none.
    checks
        One row per measured number of devices that smaller ones predict: `predicted_s` with `…_low` and `…_high`,
        `measured_s`, `prediction_error` (predicted over measured, less 1), `inside` (the interval).
    verdicts
        A sentence for each machine: whether predictions were checked there, and how they turned out.
    units
        What `throughput_per_s` counts of each `configuration` of the tables.
    """

    def __init__(self, evidence: Evidence, devices: Sequence[int]) -> None:
        found = series(evidence)
        self.predictions = predictions_table(found, devices)
        self.checks = checks_table(found)
        self.units = {each.words: each.of.workload.unit.name for each in found}
        by_machine: dict[str | None, list[Check]] = {}
        for each in found:
            by_machine.setdefault(each.of.provenance.kind, []).extend(each.checks)
        self.verdicts = [
            f"{machine or 'machine unknown'}: {checked_line(checks)}" for machine, checks in by_machine.items()
        ]
