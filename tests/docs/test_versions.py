"""Versions of Python and of packages agree between the package, the lock, the pages and CI."""

import re
import tomllib
from collections.abc import Collection
from itertools import chain

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from conftest import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def minors(text: str) -> list[int]:
    """The minor versions of Python 3 in a text, as 3.11 or (3, 11)."""
    return sorted({int(minor) for minor in re.findall(r"\b3(?:\.|, )(1\d)\b", text)})


def test_pages_name_the_versions_that_the_package_and_the_lock_support() -> None:
    supported = minors(" ".join(PROJECT["classifiers"]))
    assert minors(PROJECT["requires-python"]) == supported[:1]
    installing = (ROOT / "docs/own-training.md").read_text(encoding="utf-8").partition("## Five minutes")[0]
    every = f"3.{supported[0]} to 3.{supported[-1]}"
    assert f"Python {every}" in installing
    assert f"multicard itself, without torch, supports {every}" in (ROOT / "CONTRIBUTING.md").read_text(
        encoding="utf-8"
    )
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert minors(" ".join(workflow["jobs"]["base"]["strategy"]["matrix"]["python"])) == supported

    script = (ROOT / "envs/make-venv.sh").read_text(encoding="utf-8")
    least, beyond = minors(re.search(r"not \(3, .+\)", script)[0])
    locked = list(range(least, beyond))
    words = " or ".join(f"3.{minor}" for minor in locked)
    for page in ("README.md", "CONTRIBUTING.md", "docs/laptop.md", "docs/cluster.md", "envs/make-venv.sh"):
        assert f"Python {words}" in (ROOT / page).read_text(encoding="utf-8"), page


def locked_versions(name_of_lock: str) -> dict[str, set[Version]]:
    """Return the versions of each package in a lock, which has several where they depend on Python."""
    versions: dict[str, set[Version]] = {}
    lock = (ROOT / "envs" / name_of_lock).read_text(encoding="utf-8")
    for name, version in re.findall(r"^([\w.-]+)(?:\[.+\])?==([^\s;]+)", lock, re.M):
        versions.setdefault(canonicalize_name(name), set()).add(Version(version))
    return versions


def requirements(extras: Collection[str], groups: Collection[str] = ()) -> list[Requirement]:
    """Return what the package, some of its extras and groups of development require, but for each other."""
    optional = [PROJECT["optional-dependencies"][name] for name in extras]
    optional += [PYPROJECT["dependency-groups"][name] for name in groups]
    texts = [text for text in chain(PROJECT["dependencies"], *optional) if isinstance(text, str)]
    return [found for text in texts if (found := Requirement(text)).name != PROJECT["name"]]


# Extras and groups of development in each lock.
LOCKS: dict[str, tuple[Collection[str], Collection[str]]] = {
    "requirements.lock": (("vision", "dali", "llm", "search"), ()),
    "dev.lock": (("vision", "dali", "llm", "search"), ("test", "dev", "docs")),
    "torchtune.lock": (("vision", "torchtune"), ("test", "test-torchtune")),
}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_every_required_package_in_a_version_that_is_allowed(lock: str) -> None:
    locked = locked_versions(lock)
    for requirement in requirements(*LOCKS[lock]):
        versions = locked[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), requirement


def test_packages_that_multicard_runs_with_are_those_that_it_is_developed_with() -> None:
    developed_with = locked_versions("dev.lock")
    assert all(developed_with[name] == versions for name, versions in locked_versions("requirements.lock").items())


def test_every_extra_and_every_group_is_in_a_lock() -> None:
    extras, groups = (set(chain.from_iterable(part)) for part in zip(*LOCKS.values(), strict=True))
    assert (extras, groups) == (set(PROJECT["optional-dependencies"]), set(PYPROJECT["dependency-groups"]))


def test_the_next_major_of_snakemake_pandas_and_torch_is_not_allowed() -> None:
    for name in ("snakemake", "pandas", "torch"):
        next_major = Version(f"{max(locked_versions('dev.lock')[name]).major + 1}.0")
        specifiers = [
            requirement.specifier for requirement in requirements(*LOCKS["dev.lock"]) if requirement.name == name
        ]
        assert specifiers and not any(specifier.contains(next_major) for specifier in specifiers), name
