"""What the documents tell a reader to type works: every block is run here, or known to be run elsewhere, or marked.

code_blocks.py says how a block or a command is marked.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from code_blocks import SHELL, blocks, parsed, shell_commands
from markdown_it import MarkdownIt
from markdown_it.token import Token
from PIL import Image

from conftest import MADE, ROOT, ran
from factories import vision_runs, write_results
from forked_python import ForkedPython
from multicard.config.experiment import Experiment
from multicard.config.load import check
from multicard.programs.datasets import MNIST_FILES
from multicard.programs.vision.prepare import prepare
from synthetic import nsys_export

pytestmark = pytest.mark.slow

OTHER_READMES = ("config/README.md", "benchmarks/README.md")
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
# What is run here, in a copy of the project.
RUN_HERE = (
    r"source \.venv/bin/activate",
    r"multicard run( config/[\w-]+\.yaml)?( --profile slurm)? --dry-run",
    r"multicard status( config/[\w-]+\.yaml)?( --profile slurm)?",
    r"multicard report results --claims",
    r"multicard scale .*--dry-run.*",
    r"multicard recommend .*results.*",
    r"multicard analyze \S+ --out \S+",
    r"multicard compare \S+\.sqlite \S+\.sqlite",
    r"snakemake .* --dry-run",
    r"sed -i .* config/\S+",
    r"python -m (multicard\.config|pytest tests/\S+ -k .*|multicard\.config > \S+)",
)
# What another program of the repository runs: a pattern, the program, and a text of it by which that is seen.
RUN_ELSEWHERE = (
    (r"make (demo|lint|docs|torchtune|\.venv/(dev-)?ready)", ".ci/run", "part {1}"),
    (r"make test", ".ci/run", "make test"),
    (r"multicard export results(-mine)? --to mlflow", "tests/share/test_export.py", '"mlflow": of_mlflow'),
    (r"pip install \.", "tests/cli/test_wheel.py", "build_wheel"),
    (r"make (test-fast|test-all|emulated-gpu)", "Makefile", "{1}: "),
    (r"python -m multicard\.\w+( --docs)? > docs/[\w-]+\.md", "tests/test_docs.py", "{0}"),
    (r"\.ci/run", ".ci/run", "make test"),
    (r"make demo CONFIG=\S+", "tests/workflow/project_copy.py", 'f"CONFIG={{CONFIG}}"'),
    (r"snakemake --sdm env-modules .*", "tests/workflow/test_modules.py", '"--sdm", "env-modules"'),
    (r"snakemake (?=.*--profile slurm).*", "tests/slurm/slurm_projects.py", '"--profile", "slurm"'),
    (r"snakemake --profile profiles/local machine", "tests/workflow/test_snakefile.py", '"machine"'),
    (r"snakemake --profile profiles/local.*", "tests/workflow/project_copy.py", '"--profile", "profiles/local"'),
    (r"multicard scale --devices 1,2,4 .*", "tests/cli/test_scale_command.py", 'shell_commands("README.md")'),
    # The commands of this page tests/cli/test_own_training.py runs.
    (r"multicard scale .* --ablate .*", "tests/script/test_ablated_scripts.py", '"--ablate"'),
    (r"multicard (?:scale|run) .*", "docs/own-training.md", "{0}\n"),
    (r"multicard analyze --as-runs .*", "tests/cli/test_adopt_command.py", 'shell_commands("docs/traces.md")'),
    (r"multicard archive .*", "tests/cli/test_damaged_runs.py", '"archive"'),
    (
        r"multicard report results --proposal .*",
        "tests/report/test_proposal.py",
        'main(["report", "results", "--proposal"',
    ),
    (r"multicard report .*", "tests/test_draw.py", 'main(["report"'),
    (r"multicard compare (results|\S+\.tar\.gz) \S*results$", "tests/cli/test_compare_results.py", '"compare"'),
    (r"multicard compare .*--fail-above .*", "tests/cli/test_compare_results.py", '"compare"'),
    (r"multicard doctor --measure.*", "tests/machine/test_machine_command.py", '"--measure"'),
    (r"multicard tune .*", "tests/search/test_tune_command.py", 'main(["tune"'),
    (r"multicard doctor.*", "tests/machine/test_doctor_command.py", '"doctor"'),
)
LIMIT_S = 600
# For the programs that the pages start by `python -m`: nothing of this project, which a copy of theirs has.
PYTHON = ForkedPython(
    "numpy", "pandas", "pyarrow.parquet", "pydantic", "torch._dynamo", "torchvision", "matplotlib.pyplot"
)


def runs_elsewhere(command: str) -> bool:
    """Whether a program of the repository is known to run a command, and still does."""
    for pattern, program, text in RUN_ELSEWHERE:
        found = re.fullmatch(pattern, command)
        if found and (ROOT / program).is_file():
            return text.format(found[0], *found.groups()) in (ROOT / program).read_text(encoding="utf-8")
    return False


def runs_here(command: str) -> bool:
    return any(re.fullmatch(pattern, command) for pattern in RUN_HERE)


def test_every_command_is_run_by_a_test_or_marked() -> None:
    known = {*SHELL, "yaml", "python", "json", "diff", "text"}
    for page in PAGES:
        unknown = [command for command in shell_commands(page) if not (runs_here(command) or runs_elsewhere(command))]
        assert not unknown, f"{page}: run it here (RUN_HERE), name its test (RUN_ELSEWHERE), or mark it: {unknown}"
        assert {block.language for block in blocks(page)} <= known, page


def test_a_command_that_nothing_runs_is_found() -> None:
    text = "```sh\nunknown   # why\nmake test\n```\n<!-- needs a GPU -->\n```sh\nmarked\n```\n\n    far # needs a GPU\n"
    found = [command for block in parsed(text) for command in block.commands]
    assert found == ["unknown", "make test"]
    assert [runs_here(command) or runs_elsewhere(command) for command in found] == [False, True]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with this environment, and with the files that the documents take for granted."""
    folder = tmp_path_factory.mktemp("untouched") / "project"
    shutil.copytree(ROOT, folder, ignore=lambda at, _: {*MADE, "site"} if Path(at) == ROOT else {"__pycache__"})
    (folder / ".venv").symlink_to(sys.prefix)
    raw = folder / "data" / "raw"
    for name in ("mnist", "cnn_dailymail"):
        (raw / name).mkdir(parents=True)
    for name in MNIST_FILES:
        (raw / "mnist" / name).touch()
    for kind in ("pictures", "birds"):
        for number in range(10):
            picture = raw / kind / "ab"[number % 2] / f"{number}.png"
            picture.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 20 * number, np.uint8)).save(picture)
    (raw / "questions.jsonl").write_text('{"instruction": "?", "input": "", "output": "!"}\n')
    (folder / "four-h100.tar.gz").touch()
    for name in ("before.sqlite", "after.sqlite", "report.sqlite"):
        nsys_export(folder / name)
    for results in ("results", "results-mine"):
        write_results(folder / results, vision_runs(100.0))
    return folder


@pytest.fixture
def project(untouched: Path, tmp_path: Path) -> Path:
    """A copy of it, in which files may be changed."""
    subprocess.run(["cp", "-a", untouched, tmp_path / "project"], check=True)
    return tmp_path / "project"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = {"PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(folder / "src")}
    if module := re.fullmatch(r"python -m ([^>]+?)(?: > (\S+))?", command):
        done = PYTHON.run(shlex.split(module[1]), folder, os.environ | paths, LIMIT_S)
        if module[2]:
            (folder / module[2]).write_text(done.stdout, encoding="utf-8")
        return done
    return ran("bash", "-c", command, cwd=folder, env=os.environ | paths, limit_s=LIMIT_S)


def record(report: Path) -> bool:
    """Leave a real report of a program that does nothing; False where there is no nsys."""
    if shutil.which("nsys") is None:
        return False
    command = ["nsys", "profile", "--trace=osrt", "--sample=none", "--cpuctxsw=none", f"--output={report}", "true"]
    subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=True)
    return True


def complete(settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration that holds these settings, with a question where they have none."""
    asked = {"question": "?", "fixed": {"device": "cpu"}, "figures": ["step_breakdown"]}
    needed = {} if "scenarios" in settings else {"datasets": {"digits": {"source": "digits"}}}
    datasets = needed.get("datasets", {}) | settings.get("datasets", {})
    return {"scenarios": {"any": asked}} | settings | ({"datasets": datasets} if datasets else {})


def test_every_configuration_is_valid(untouched: Path) -> None:
    found = [(page, block) for page in PAGES for block in blocks(page) if block.settings and not block.needs]
    assert len({page for page, _ in found}) > 5
    for page, block in found:
        assert set(block.settings) <= set(Experiment.model_fields), block.text
        with chdir(untouched):
            check(complete(block.settings), page)


TYPED = [page for page in PAGES if any(map(runs_here, shell_commands(page)))]


# The page on extending trains what it adds.
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.rare] if page == "docs/extending.md" else []) for page in TYPED],
    ids=lambda page: Path(page).stem,
)
def test_what_a_page_tells_to_type_works_in_its_order(page: str, project: Path) -> None:
    for block in blocks(page):
        named = re.search(r"[Ss]ave (?:this|it) as `([^`]+)`", block.before)
        if block.language == "diff":
            (project / "change.diff").write_text(block.text, encoding="utf-8")
            applied = shell("git apply change.diff", project)
            assert applied.returncode == 0, applied.stderr
        elif named and (block.language == "python" or block.settings):
            (project / named[1]).write_text(block.text, encoding="utf-8")
        elif block.settings is None:
            for command in filter(runs_here, block.commands):
                if "report.nsys-rep" in command and not record(project / "report.nsys-rep"):
                    continue  # no nsys
                done = shell(command, project)
                # The report is of a program that uses no GPU: of where its time goes nothing can be told.
                expected = 2 if "analyze report.nsys-rep" in command else 0
                assert done.returncode == expected, (command, done.stdout[-2000:], done.stderr[-2000:])


def test_the_change_of_the_first_hour_takes_one_run_away_and_asks_for_another(project: Path) -> None:
    [first] = [block for block in blocks("docs/laptop.md") if block.settings]
    [change] = [command for command in shell_commands("docs/laptop.md") if command.startswith("sed")]
    (project / "config" / "mine.yaml").write_text(first.text, encoding="utf-8")
    before = listed_runs(project)
    assert shell(change, project).returncode == 0
    after = listed_runs(project)
    assert len(before) == len(after) == 4
    [gone], [new] = before - after, after - before
    assert "_fp64_" in gone
    assert new == gone.replace("_fp64_", "_bf16_")


def listed_runs(project: Path) -> set[str]:
    listed = shell("multicard run config/mine.yaml --dry-run", project)
    assert listed.returncode == 0, listed.stderr
    return set(re.findall(r"vision_\S+", listed.stdout))


def test_the_data_sets_of_the_worked_example_can_be_prepared(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from multicard.programs.llm.prepare_texts import prepare_texts

    monkeypatch.chdir(project)
    [sample] = [block.text for block in blocks("docs/extending.md") if block.language == "json"]
    (project / "data" / "raw" / "questions.jsonl").write_text(json.dumps(json.loads(sample)) + "\n")
    [settings] = [block.settings for block in blocks("docs/extending.md") if "pictures" in block.text]
    datasets = check(settings, "extending.md").datasets
    prepare("pictures", datasets["pictures"], project / "data" / "pictures")
    prepare_texts("my-questions", datasets["my-questions"], project / "data" / "my-questions", project / "resources")
    assert json.loads((project / "data/my-questions/train.jsonl").read_text())["output"] == "Oslo."
    assert json.loads((project / "data/pictures/provenance.json").read_text())["train_samples"] == 8


def inline(page: str) -> list[Token]:
    """Pieces of the running text of a page."""
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text(encoding="utf-8"))
    return [child for token in tokens for child in token.children or ()]


def test_files_and_folders_that_a_page_names_are_there() -> None:
    known = (
        r"(?:src|tests|workflow|config|envs|resources|profiles|docs|benchmarks)/[\w./-]+|Makefile|Snakefile|\.ci/run"
    )
    code = {child.content.rstrip("/") for page in PAGES for child in inline(page) if child.type == "code_inline"}
    named = {text for text in code if re.fullmatch(known, text)} - {"config/mine.yaml"}
    # docs/statistics.md names tests without their folder: `config/test_order.py`.
    places = (ROOT, ROOT / "tests")
    assert {name for name in named if not any((place / name).exists() for place in places)} == set()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", *OTHER_READMES])
def test_links_to_files_lead_somewhere(page: str) -> None:
    """Links of the pages in docs/ are followed by `mkdocs build --strict`."""
    links = [target for child in inline(page) if (target := child.attrGet("href") or child.attrGet("src"))]
    files = [target.partition("#")[0] for target in links if not re.match(r"[a-z]+:|#", target)]
    assert [target for target in files if not ((ROOT / page).parent / target).exists()] == []
