"""The figures of one scenario as files."""

from collections.abc import Iterable
from pathlib import Path

from multicard.analysis.scenario_tables import ScenarioTables
from multicard.figures.catalog import draw


def draw_scenario(figures: Iterable[str], scenario: Path, out: Path) -> None:
    """Draw figures of the scenario whose measures and tables a folder holds, into the folder `out`.

    Raises
    ------
    UserError
        If they are not there, or cannot be read.
    """
    gathered = ScenarioTables(scenario)
    for figure in figures:
        draw(figure, gathered, out / figure)
