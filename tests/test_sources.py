"""What holds of the sources as a whole: who imports whom, what starts fast, and what is written nowhere."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

# A package imports only packages before it; those with a set import only these.
PACKAGES: dict[str, set[str] | None] = {
    "core": set(),
    "profilers": {"core"},
    "runs": {"core", "profilers"},
    "stats": {"core"},
    "observe": {"core", "profilers"},  # runs inside the user's training process
    "launchers": {"core"},
    "programs": {"core", "runs", "profilers", "observe", "launchers"},
    "config": {"core", "runs", "profilers", "programs"},
    "launch": {"core", "runs", "profilers", "observe", "launchers", "programs", "config"},
    "workflow": {"core", "runs", "config", "launch"},
    "trace": {"core", "runs", "profilers"},
    "results": {"core", "runs", "stats", "programs", "config", "trace"},
    "answers": {"core", "runs", "stats", "programs", "config", "trace", "results"},
    "papers": {"core", "runs", "stats", "programs", "config", "results", "answers"},
    "figures": {"core", "runs", "stats", "programs", "config", "results", "answers"},
    "share": {"core", "runs", "stats", "profilers", "programs", "config", "trace", "results", "answers"},
    "adopt": {
        "core", "runs", "stats", "profilers", "programs", "config", "trace", "results", "answers", "share",
    },
    "machine": {
        "core", "runs", "stats", "profilers", "observe", "programs", "config", "launch", "trace", "results",
        "answers", "share",
    },
    "search": {"core", "runs", "stats", "programs", "config", "results", "answers", "share", "machine"},
    "report": None,
    "api": None,
    "cli": None,
}  # fmt: skip
PACKAGE = ROOT / "src" / "multicard"
IMPORT = re.compile(r"^ *(?:from|import) multicard(?:\.(\w+)| import (\w+))", re.M)
HEAVY = ("torch", "matplotlib", "optuna", "pandas", "pyarrow", "rich")
# Words that only the authors knew, each whole.
PRIVATE = (
    "cards?|streets?|hindrances?|surroundings|obstacles?|misfits?|made[- ]up|anew|mend(s|ed)?|imagined|made on the spot"
    "|rooms?|goes on (after|from|where)|starts anew|no word from|not whole|any_will_do|of_texts|bucket_mb|table_laws"
)
SPOKEN = ("src", "workflow", "docs", "config", "profiles", "benchmarks", "tests", "*.md")
# Habits that pages, configurations and the report are to be without.
HABITS = (
    "those of it|nothing of it|that is none|whoever|nobody|as (of|for) any|with what it|takes? (it|them)sel(f|ves) for"
    "|beside it|mind:"
)
READ = ("docs", "README.md", "config", "profiles", "workflow/report", "src/multicard/report", "*.md.j2")
CLASS_OF_THE_PAGE = (":!src/multicard/report/page.css", ":!src/multicard/report/page.html.j2")
UNSAFE = r"weights_only=False|allow_pickle=True|\.extractall\("  # ruff has the others: pyproject.toml


def imported_packages(file: Path) -> set[str]:
    found = {below or name for below, name in IMPORT.findall(file.read_text(encoding="utf-8"))}
    return {"api" if name in ("read_trace", "read_results") else name for name in found} - {"__version__"}


def test_a_package_imports_only_itself_and_packages_before_it() -> None:
    before: set[str] = set()
    for package, stated in PACKAGES.items():
        allowed = before if stated is None else stated
        assert allowed <= before
        for file in (PACKAGE / package).rglob("*.py"):
            assert imported_packages(file) - {"marks"} <= allowed | {package}, file
        before.add(package)
    assert before == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    top = {path.name: imported_packages(path) for path in PACKAGE.glob("*.py")}
    assert top == {"marks.py": set(), "__init__.py": {"api"}, "__main__.py": {"cli"}}


# Texts in modules above the programs that are the name of a program, but mean something else.
OTHER_MEANINGS = {
    ("workflow/kept_outcomes.py", "script"),  # a key of a file: the checksum of the user's script
}


def names_of_programs(tree: ast.Module, programs: set[str]) -> set[str]:
    """Return what of a module names a program: what it imports of one, and texts that are the name of one alone."""
    imports = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {f"{node.module}.{alias.name}" for alias in node.names}
    # Records have the name of their program in capitals.
    of_a_program = re.compile(rf"multicard\.programs\.({'|'.join(programs)})\b", re.I)
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in imports if of_a_program.match(name)} | texts & programs


def test_no_package_above_the_programs_names_one_of_them() -> None:
    """What differs from program to program is in its record, `Program`, which other packages ask."""
    programs = {path.parent.name for path in (PACKAGE / "programs").glob("*/__init__.py")}
    packages = [*PACKAGES]
    above = set(packages[packages.index("programs") + 1 :])
    # The claims of the papers are about two of the programs.
    named = set()
    for package in above - {"papers"}:
        for path in (PACKAGE / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            file = path.relative_to(PACKAGE).as_posix()
            named |= {(file, name) for name in names_of_programs(tree, programs)}
    assert named == OTHER_MEANINGS


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import multicard.cli; list(multicard.cli.COMMANDS)", HEAVY),
        (
            "from multicard.config import figures, load, runs; list(figures.FIGURES); "
            "runs.expand(load.read_experiment(Path('config/config.yaml')))",
            ("torch", "matplotlib", "pandas", "pyarrow"),
        ),
        ("import multicard.programs.llm.memory_estimate", ("torch",)),
    ],
)
def test_what_starts_often_starts_fast(statement: str, absent: tuple[str, ...]) -> None:
    program = f"import sys; from pathlib import Path; {statement}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(loaded.stdout.split()) & set(absent) == set()


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        (rf"\b({PRIVATE})\b", (*SPOKEN, *CLASS_OF_THE_PAGE)),
        (rf"\b({HABITS})\b", READ),
        (r"(^|[^\w.$}])/(home|root|work|Users)/[a-z]", ()),
        (UNSAFE, ("src", "workflow")),
    ],
    ids=["private words", "habits", "paths of a machine", "data as code"],
)
def test_no_tracked_file_has_such_a_line(pattern: str, where: tuple[str, ...]) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "grep", "-aniE", pattern, "--", *where, ":!tests/test_sources.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    assert (found.returncode, found.stdout) == (1, "")


NAMED_MODULE = re.compile(rf"`(?:multicard\.)?({'|'.join(PACKAGES)})\.(\w+(?:\.\w+)*)")
FILES = ("csv", "json", "yaml", "md", "pickle")
# Packages that were renamed.
FORMER = re.compile(r"`(?:multicard\.)?(?:analysis|archive|experiment|workloads)\.\w|`record\.(?:memory|observe|clock)")


def test_modules_that_comments_name_are_there() -> None:
    """Such a name begins with a package: `results.breakdown.StepPart`."""
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        content = file.read_text(encoding="utf-8")
        wrong += [f"{file.relative_to(PACKAGE)}: {former}" for former in FORMER.findall(content)]
        for package, rest in NAMED_MODULE.findall(content):
            parts = rest.split(".")
            place = PACKAGE / package
            while parts and (place / parts[0]).is_dir():
                place /= parts.pop(0)
            module = place / (f"{parts[0]}.py" if parts else "__init__.py")
            inside = parts[1:] if module.exists() else parts
            text = (module if module.exists() else place / "__init__.py").read_text(encoding="utf-8")
            if parts and parts[-1] not in FILES and not all(re.search(rf"\b{name}\b", text) for name in inside):
                wrong.append(f"{file.relative_to(PACKAGE)}: {package}.{rest}")
    assert wrong == []


PROGRAM = re.compile(r'^if __name__ == "__main__":|^\w+ = parser\.parse_args\(', re.M)


def test_the_docstring_of_a_program_opens_with_the_command_that_runs_it() -> None:
    """The command stands in the first paragraph, or is the second."""
    paths = [path for folder in ("src", "workflow/scripts", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(paths)}
    programs = {
        path: text for path, text in sources.items() if path.name == "__main__.py" or PROGRAM.search(text) is not None
    }
    assert len(programs) > 30
    for path, text in programs.items():
        opening = "\n\n".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[:2])
        names = [path.name]
        if path.is_relative_to(PACKAGE):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            names.append(".".join(part for part in parts if part != "__main__"))
        file_or_module = "|".join(map(re.escape, names))
        assert re.search(rf"\b(?:python|torchrun|traceml)\b.*[ /](?:{file_or_module})(?![\w.])", opening), path


TESTS = ROOT / "tests"
# One underscore at the beginning; names of the form `_repr_html_` are IPython's.
PRIVATE_NAME = re.compile(r"_[a-z](\w*[^\W_])?", re.I)


def modules_of_tests() -> dict[str, ast.Module]:
    """Return the syntax tree of each Python file of the tests, by its path in their folder."""
    paths = sorted(TESTS.rglob("*.py"))
    return {path.relative_to(TESTS).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def defined_privately() -> set[str]:
    """Return the private names that the package defines: of functions, classes, variables and attributes."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return {name for name in names if PRIVATE_NAME.fullmatch(name)}


def imported_from_package(tree: ast.Module) -> set[str]:
    """Return the names that a module imports from the package, less the modules among them.

    A module whose name begins with an underscore is no entry of a registry; what it defines may be public.
    """
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE.name
        for alias in node.names
        if not PACKAGE.parent.joinpath(*node.module.split("."), f"{alias.name}.py").is_file()
    }


def attributes(tree: ast.Module) -> set[str]:
    """Return the names of attributes that a module reads or writes on anything but `self`."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }


def replaced_constants(tree: ast.Module) -> set[str]:
    """Return names in capitals that a module replaces by `monkeypatch.setattr` or `patch.object`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    names = {
        call.args[1].value
        for call in calls
        if call.func.attr in ("setattr", "object") and len(call.args) > 1 and isinstance(call.args[1], ast.Constant)
    }
    return {name for name in names if isinstance(name, str) and name.isupper()}


def test_no_test_module_imports_another_one() -> None:
    """What two of them need is a fixture of conftest.py or lies in a module that has no tests."""
    for path, tree in modules_of_tests().items():
        imports = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert [module for module in imports if module.rpartition(".")[2].startswith("test_")] == [], path


def test_tests_use_what_is_public_and_pass_limits_as_arguments() -> None:
    """A test that reaches inside fails with a change that no user sees. Limits of time and size are parameters."""
    # Attributes of torchtune's recipes and Hugging Face's data sets, too, which tests set.
    private = defined_privately() - {"_model", "_data"}
    for path, tree in modules_of_tests().items():
        assert (imported_from_package(tree) | attributes(tree)) & private == set(), path
        assert replaced_constants(tree) == set(), path


def test_what_rules_put_into_commands_is_quoted() -> None:
    """Every `{…}` of a shell command is quoted by Snakemake (`:q`), but for numbers."""
    plain = {"resources.runtime", "resources.time_limit_min", "threads"}
    for rules in sorted(ROOT.glob("workflow/rules/*.smk")):
        # What is indented more than its `shell:`.
        commands = re.findall(r"^( *)shell:\n((?:\1 +.*\n|\n)*)", rules.read_text(encoding="utf-8"), re.M)
        for field in re.findall(r"\{([^}]*)\}", "".join(command for _, command in commands)):
            assert field.endswith(":q") or field in plain, (rules.name, field)
