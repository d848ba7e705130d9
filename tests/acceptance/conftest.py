"""A stack that several tests use; each of them leaves it whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.client import Client
from tests.acceptance.launcher import Launcher, up


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a space in its path."""
    made = tmp_path / "a space"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A running stack for the tests of one module."""
    with up(tmp_path_factory.mktemp("shared stack ")) as started:
        yield started


@pytest.fixture
def client(stack: Launcher) -> Iterator[Client]:
    """A client of it."""
    with Client(stack) as made:
        yield made
