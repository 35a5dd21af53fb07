"""The documents as a site: built strictly, and opened in a real Chromium from a disk."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser, browser
from conftest import ROOT, ran

pytestmark = pytest.mark.rare

PHONE, DESK = 390, 1280
WIDER_THAN_THE_SCREEN = "document.documentElement.scrollWidth > window.innerWidth"
BROKEN = ("nowhere.md", "files.md#nowhere", "../README.md")
Built = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The site, and how the build of it ended, of the documents and links that lead nowhere on one of the pages."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    with (folder / "docs" / "laptop.md").open("a") as page:
        page.write("".join(f"\n[there]({link})\n" for link in BROKEN))
    # Not --quiet: without warnings nothing is strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder / "site"]
    return folder / "site", ran(*command, cwd=folder, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})


def test_a_link_that_leads_nowhere_stops_the_build_and_nothing_else_does(built: Built) -> None:
    site, done = built
    assert done.returncode == 1
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == len(BROKEN), done.stderr
    for link in BROKEN:
        assert sum(f"'{link}'" in line for line in warnings) == 1, done.stderr
    assert "mkdocs build --strict\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    pages = {path.stem for path in site.glob("*.html")} - {"404"}
    assert pages == {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert "image_size_scaling" in (site / "figures.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium on the PATH (envs/install-chromium.sh)")
    with browser() as page:
        yield page


def test_the_search_works_from_a_disk(built: Built, opened: Browser) -> None:
    opened.width(DESK)
    opened.open(built[0] / "index.html")
    opened.run("document.querySelector('.md-search__input').focus()")
    opened.wait("document.querySelector('iframe')")
    typed = "search.value = 'student'; search.dispatchEvent(new Event('keyup', {bubbles: true}))"
    opened.wait(
        f"(() => {{ const search = document.querySelector('.md-search__input'); {typed}; "
        "return document.querySelector('.md-search-result__link[href*=statistics]') })()"
    )
    assert opened.complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "light"), (DESK, "dark")])
def test_pages_open_from_a_disk_fit_the_screen_and_ask_for_nothing_else(
    built: Built, opened: Browser, width: int, scheme: str
) -> None:
    opened.width(width)
    opened.scheme(scheme)
    for name in ("index", "figures", "cluster", "extending"):
        opened.open(built[0] / f"{name}.html")
        assert opened.run("document.querySelector('h1').textContent.length > 0")
        assert not opened.run(WIDER_THAN_THE_SCREEN), name
        assert opened.complaints == []
        assert [address for address in opened.requests if not address.startswith("file:")] == []
        shown = opened.run("document.body.dataset.mdColorScheme")
        assert shown == {"light": "default", "dark": "slate"}[scheme]
