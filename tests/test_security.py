"""No code of the project takes data for code: what ruff's rules do not see (pyproject.toml)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT
from multicard.core.errors import UserError
from multicard.experiment.load import read_yaml


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
