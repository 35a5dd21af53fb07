"""The project speaks the field's English: words that only its authors knew do not come back."""

import re
import subprocess

import pytest

from conftest import ROOT

# Each with what it may stand in: the name of the project, and words that hold it by chance are no whole words.
PRIVATE = (
    r"cards?", r"streets?", r"hindrances?", r"surroundings", r"obstacles?", r"misfits?", r"made[- ]up", r"anew",
    r"mend(?:s|ed)?", r"imagined", r"made on the spot", r"rooms?", r"goes on (?:after|from|where)", r"starts anew",
    r"no word from", r"not whole", r"any_will_do", r"of_texts", r"bucket_mb", r"table_laws",
)  # fmt: skip
SPOKEN = (
    "src", "workflow", "docs", "config", "profiles", "benchmarks", "resources/claims.yaml", "resources/*README.md",
    "README.md", "Makefile", "Snakefile", "tests",
)  # fmt: skip
# A class of the report's style sheet, and this list.
EXCEPT = ("src/multicard/report/page.css", "src/multicard/report/page.html.j2", "tests/test_words.py")


@pytest.mark.parametrize("word", PRIVATE)
def test_a_private_word_is_nowhere(word: str) -> None:
    listed = subprocess.run(["git", "ls-files", "-z", *SPOKEN], cwd=ROOT, capture_output=True, text=True, check=False)
    if not listed.stdout:
        pytest.skip("not a git checkout")
    found = []
    for name in listed.stdout.split("\0")[:-1]:
        path = ROOT / name
        if name not in EXCEPT and path.suffix in (".py", ".md", ".yaml", ".smk", ".j2", ".rst", ".js", ""):
            text = path.read_text(encoding="utf-8")
            found += [f"{name}: {line.strip()}" for line in text.splitlines() if re.search(rf"\b{word}\b", line, re.I)]
    assert not found
