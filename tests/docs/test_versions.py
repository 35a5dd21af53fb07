"""What versions of Python the pages name are those of the package, of the locked environment, and of CI."""

import re
import tomllib

import yaml

from conftest import ROOT


def minors(text: str) -> list[int]:
    """The minor versions of Python 3 in a text, as 3.11 or (3, 11)."""
    return sorted({int(minor) for minor in re.findall(r"\b3(?:\.|, )(1\d)\b", text)})


def test_pages_name_the_versions_that_the_package_and_the_lock_support() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = minors(" ".join(project["classifiers"]))
    assert minors(project["requires-python"]) == supported[:1]
    installing = (ROOT / "docs/own-training.md").read_text(encoding="utf-8").partition("## Five minutes")[0]
    assert f"Python 3.{supported[0]} to 3.{supported[-1]}" in installing
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    tested = [job["strategy"]["matrix"]["python"] for job in workflow["jobs"].values() if "strategy" in job]
    assert minors(" ".join(tested[0])) == [supported[0], supported[-1]]

    script = (ROOT / "envs/make-venv.sh").read_text(encoding="utf-8")
    least, beyond = minors(re.search(r"not \(3, .+\)", script)[0])
    locked = list(range(least, beyond))
    words = " or ".join(f"3.{minor}" for minor in locked)
    for page in ("README.md", "CONTRIBUTING.md", "docs/laptop.md", "docs/cluster.md", "envs/make-venv.sh"):
        assert f"Python {words}" in (ROOT / page).read_text(encoding="utf-8"), page
