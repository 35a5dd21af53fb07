"""Entries are found in the modules of a package, in their order; no name is given twice."""

import sys
from pathlib import Path

import pytest

from multicard.core.registry import Registry

ENTRY = "from types import SimpleNamespace as Entry\nTOY = Entry(name={name!r}, order={order})\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / f"toys_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return folder


def test_entries_come_in_their_order_from_modules_that_have_the_attribute(package: Path) -> None:
    (package / "a.py").write_text(ENTRY.format(name="last", order=3))
    (package / "b.py").write_text(ENTRY.format(name="first", order=1))
    (package / "c.py").write_text(
        "from types import SimpleNamespace as E\nTOY = (E(name='x', order=2), E(name='w', order=2))"
    )
    (package / "helper.py").write_text("")
    (package / "_private.py").write_text("raise AssertionError")
    registry = Registry(package.name, "TOY")
    assert list(registry) == ["first", "w", "x", "last"]
    assert registry["last"].order == 3 and "helper" not in registry and len(registry) == 4


def test_a_name_given_twice_is_refused(package: Path) -> None:
    for module in ("a", "b"):
        (package / f"{module}.py").write_text(ENTRY.format(name="same", order=1))
    with pytest.raises(ValueError, match="two entries are named same"):
        list(Registry(package.name, "TOY"))
