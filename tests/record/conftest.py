"""Processes that run scripts, for all tests of the observer."""

from collections.abc import Iterator

import pytest

from observed_scripts import Server, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs scripts under the observer."""
    with serving(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs scripts without it."""
    with serving(tmp_path_factory.mktemp("plain"), observed=False) as started:
        yield started
