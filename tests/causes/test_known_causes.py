"""Each known cause of bad scaling is named, by runs of the scripts that were built before anything could name it.

Whether shares and gains are right, a busy machine does not show; README.md has them, measured by hand.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from causes.known_causes import KNOWN_CAUSES, SCRIPTS, KnownCause
from multicard.answers.diagnoses.causes import causes_of
from multicard.cli import main
from multicard.core.layout import RUN
from multicard.results.results import Results

pytestmark = [pytest.mark.slow, pytest.mark.rare]

# What takes time on CPUs for which no sleep can stand is a cause on some machines, and too small to be told on others.
SETTINGS = ("needless_find_unused.py", "anomaly_detection.py", "changing_integer.py")
TOLD = [cause for cause in KNOWN_CAUSES if not cause.measured or cause.script in SETTINGS]


def name_of(cause: KnownCause) -> str:
    return "_".join([Path(cause.script).stem, *(argument.strip("-") for argument in cause.arguments)])


# A script is run again if its cause was not named: while something else takes the CPUs for seconds, a run shows little
# else. A cause that multicard does not know stays unnamed in each of so many attempts.
ATTEMPTS = 3


class Attempts:
    """Runs of the scripts, on one and on two processes, in a folder of their own for each attempt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._results = self._run(TOLD)

    def _run(self, causes: list[KnownCause]) -> Path:
        """Run scripts, and return the results."""
        folder = self._folder / str(len(list(self._folder.iterdir())))
        folder.mkdir()
        scenarios = {
            name_of(cause): {
                "question": "Why does it not scale?",
                "fixed": {"command": [str(SCRIPTS / cause.script), *cause.arguments]},
                "vary": {"devices": [1, 2]},
                "figures": ["step_breakdown"],
            }
            for cause in causes
        }
        fixed = {"workload": "script", "device": "cpu", "profiler": "none", "warmup_steps": 4, "steps": 60}
        config = {"results": str(folder / "results"), "time_limit_min": 5, "fixed": fixed, "scenarios": scenarios}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            main(["run", str(folder / "config.yaml")])
        assert len(list(folder.glob(f"results/runs/*/{RUN}"))) == 2 * len(causes)
        return folder / "results"

    def told(self, cause: KnownCause) -> Iterator[list[str]]:
        """Yield what is said of a script's run on two processes, in one attempt after another."""
        for attempt in range(ATTEMPTS):
            results = self._results if attempt == 0 else self._run([cause])
            of_script = Results.read(results, [name_of(cause)])
            [two] = [configuration for configuration in of_script.configurations() if configuration["devices"] == 2]
            assert [run.outcome for run in two.runs] == ["completed"]
            yield [found.sentence for found in causes_of(two, of_script)]


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Attempts:
    return Attempts(tmp_path_factory.mktemp("causes"))


def names(cause: KnownCause, sentences: list[str]) -> bool:
    return any(word.lower() in sentence.lower() for word in cause.words for sentence in sentences)


@pytest.mark.parametrize("cause", TOLD, ids=name_of)
def test_the_cause_is_named(cause: KnownCause, attempts: Attempts) -> None:
    said = []
    for sentences in attempts.told(cause):
        said.append(sentences)
        if names(cause, sentences):
            return
    pytest.fail(f"in {ATTEMPTS} attempts: {said}")
