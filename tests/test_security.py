"""No code of the project takes data for code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT
from multicard.core.errors import UserError
from multicard.experiment.load import read_yaml

# Modules that build objects from bytes by running what these say.
UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "os.system", "os.popen", "yaml.unsafe_load", "yaml.full_load"}
PROGRAMS = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("workflow/**/*.py")])


def faults(source: str) -> Iterator[str]:
    """What of a program takes data for code, or hands text to a shell."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"line {node.lineno}: {name}" for name in names if name.split(".")[0] in UNSAFE_MODULES)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            wrong = (
                called in UNSAFE_CALLS
                or given.get("shell") == "True"
                or (called == "torch.load" and given.get("weights_only") != "True")
                or (called in ("np.load", "numpy.load") and given.get("allow_pickle") != "False")
                or (called.endswith((".extractall", ".unpack_archive")))
                or (called in ("pd.read_pickle", "pandas.read_pickle"))
            )
            if wrong:
                yield f"line {node.lineno}: {called}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_program_takes_data_for_code(program: Path) -> None:
    assert list(faults(program.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "unsafe",
    [
        "import pickle", "from joblib import load", "torch.load(f)", "torch.load(f, weights_only=False)", "eval(x)",
        "subprocess.run(c, shell=True)", "np.load(f)", "os.system(c)", "archive.extractall(p)",
    ],
)  # fmt: skip
def test_what_is_unsafe_is_found(unsafe: str) -> None:
    assert list(faults(unsafe))


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
