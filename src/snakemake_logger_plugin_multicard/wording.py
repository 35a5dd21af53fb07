"""Words for the runs and the scenarios of a plan, as the console shows them."""

from pathlib import Path

from multicard.config.estimate import estimate_cost, times_by_earlier_runs
from multicard.config.plan import Plan
from multicard.config.read_run import read_run_if_any
from multicard.config.wording import setting
from multicard.core.errors import UserError
from multicard.core.files import read_json
from multicard.core.layout import ANSWER, LOG, STEPS
from multicard.core.reasons import describe_reason
from multicard.core.units import ARGS_PREFIX, SECONDS, hours_and_minutes, with_unit
from multicard.launch.judge import measured_steps


class Wording:
    """Describes runs and scenarios by the plan and by the files in the folder of its results; made by `Console`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._folder = Path(plan.experiment.results)
        # A run that scenarios share is named by the first of them.
        self._scenario_of: dict[str, str] = {}
        for scenario, runs in plan.scenarios.items():
            for run in runs:
                self._scenario_of.setdefault(run.id, scenario)

    def estimate(self) -> str:
        """Return how long the missing runs may take, as the end of a sentence; "" where it is not known.

        On this machine earlier runs tell it, else the work of runs on GPUs if it is known of all.
        """
        missing = self._plan.without_record()
        times = None if self._plan.experiment.cluster else times_by_earlier_runs(self._plan, missing)
        if times is not None:
            return f", {times.sentence()}"
        runs = [self._plan.runs[run] for run in missing]
        cost = estimate_cost(runs, self._plan.experiment.time_limit_min, self._plan.machine.gpus)
        are_on_gpus = all(run.parameters.device == "cuda" for run in runs)
        if not runs or cost.unknown or not are_on_gpus:
            return ""
        return f", about {hours_and_minutes(3600 * cost.wall_h)}, one run after another"

    def run(self, run: str, position: int, total: int) -> str:
        """Return a name for a run: its position, its scenario and the values of what varies in that."""
        name = self._scenario_of[run]
        scenario = self._plan.experiment.scenarios[name]
        p = self._plan.runs[run].parameters
        arguments = getattr(p, "args", {})
        words = [name]
        for parameter in scenario.varied:
            value = getattr(p, parameter, arguments.get(parameter.removeprefix(ARGS_PREFIX)))
            words.append(setting(parameter, value))
        if scenario.repeats.most > 1:
            words.append(f"repeat {p.repeat}")
        return f"run {position} of {total}: {', '.join(words)}"

    def outcome(self, run: str) -> str:
        """Return the time of a step of a completed run, or why the run did not complete and where its log is."""
        folder = self._folder / "runs" / run
        try:
            record = read_run_if_any(folder)
            if record is None:
                return f"without a record; log: {folder / LOG}"
            measured = measured_steps(folder / STEPS) if record.completed else None
        except UserError as error:
            return str(error)
        if not record.completed:
            words = record.outcome.replace("_", " "), describe_reason(record.reason)
            return f"{', '.join(filter(None, words))}; log: {folder / LOG}"
        return "completed" if measured is None else f"{with_unit(measured.step_s, SECONDS)} per step"

    def answer(self, scenario: str) -> str | None:
        """Return the answer of a scenario, with the figure that shows it; None if it has none yet."""
        file = self._folder / "scenarios" / scenario / ANSWER
        if not file.is_file():
            return None
        answer = read_json(file)
        figures = self._plan.figures().get(scenario, [])
        shown_in = ""
        if answer["rows"] and figures:
            figure = answer["figure"] if answer["figure"] in figures else figures[0]
            path = self._folder / "figures" / scenario / f"{figure}.png"
            shown_in = f" → {path}" if path.exists() else ""
        return f"{scenario}: {answer['sentence']}{shown_in}"
