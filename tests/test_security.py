"""No code of the project takes data for code: with ruff's rules in pyproject.toml."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT
from multicard.core.errors import UserError
from multicard.experiment.load import read_yaml

# Calls that are safe with one argument only, of which ruff has no rule.
SAFE_BY = {
    "torch.load": ("weights_only", "True"),
    "np.load": ("allow_pickle", "False"),
    "numpy.load": ("allow_pickle", "False"),
}


def faults(source: str) -> list[str]:
    """Calls of a program that would take data for code."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        name, given = ast.unparse(call.func), {each.arg: ast.unparse(each.value) for each in call.keywords}
        argument, value = SAFE_BY.get(name, ("", None))
        if given.get(argument) != value or name.endswith(".extractall"):
            found.append(f"line {call.lineno}: {name}")
    return found


def test_no_program_takes_data_for_code() -> None:
    for program in (*ROOT.glob("src/**/*.py"), *ROOT.glob("workflow/**/*.py")):
        assert faults(program.read_text(encoding="utf-8")) == [], program


def test_what_is_unsafe_is_found(tmp_path: Path) -> None:
    unsafe = [
        "torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f)", "archive.extractall(p)", "import pickle",
        "from joblib import load", "eval(x)", "import subprocess\nsubprocess.run(c, shell=True)",
        "import os\nos.system(c)", "import yaml\nyaml.unsafe_load(f)",
    ]  # fmt: skip
    lint = [sys.executable, "-m", "ruff", "check", "--quiet", "--config", ROOT / "pyproject.toml", "--select", "S,TID"]
    for number, source in enumerate(unsafe):
        program = tmp_path / f"{number}.py"
        program.write_text(source)
        assert faults(source) or subprocess.run([*lint, program], check=False).returncode == 1, source


def test_a_tag_in_the_configuration_makes_no_object(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("x: !!python/object/apply:os.system ['true']")
    with pytest.raises(UserError, match="does not parse"):
        read_yaml(tmp_path / "x.yaml")


def test_what_rules_put_into_commands_is_quoted() -> None:
    """Every `{…}` of a shell command is quoted by Snakemake (`:q`), but for names that a pattern restricts."""
    plain = {"resources.runtime", "resources.time_limit_min", "threads"}  # numbers
    for rules in sorted(ROOT.glob("workflow/rules/*.smk")):
        for command in _shell_commands(rules.read_text(encoding="utf-8")):
            fields = [part.partition("}")[0] for part in command.split("{")[1:]]
            unquoted = [field for field in fields if not field.endswith(":q") and field not in plain]
            assert unquoted == [], (rules.name, unquoted)


def _shell_commands(text: str) -> Iterator[str]:
    """The strings after each `shell:` of a rules file."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.strip() == "shell:":
            depth = len(line) - len(line.lstrip())
            command = []
            for following in lines[number + 1 :]:
                if following.strip() and len(following) - len(following.lstrip()) <= depth:
                    break
                command.append(following)
            yield "\n".join(command)
