"""The TOML file of the settings, and where in it something stands: a refusal names the line that is wrong.

tomllib tells no positions, and says all the same where a statement ends: a text that is cut off at a line is TOML
again if and only if no statement is cut through. So every form that TOML has (tables, arrays of them, dotted and
quoted keys, inline tables, values of several lines) is read by its own parser, and none by us.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inbox.errors import SettingsError

BARE = re.compile(r"[A-Za-z0-9_-]+")
Place = Sequence[str | int]


class Misplaced(ValueError):
    """What is wrong stands deeper in the file than the model that found it: at ``place`` below it."""

    def __init__(self, place: Place, what: str) -> None:
        super().__init__(what)
        self.place = place


def dotted(place: Place) -> str:
    """Return a setting's path as TOML writes it; the place of an item in an array is a number."""
    return ".".join(
        str(part) if isinstance(part, int) or BARE.fullmatch(part) else json.dumps(part, ensure_ascii=False)
        for part in place
    )


def first_fault(error: ValidationError) -> tuple[Place, str]:
    """Return where the first fault is and what it is, without the value (it may be a secret)."""
    faults = error.errors(include_input=False, include_url=False)
    # A misspelt setting is both unknown and missing, and the first says more.
    fault = next((found for found in faults if found["type"] == "extra_forbidden"), faults[0])
    cause = fault.get("ctx", {}).get("error")
    place: Sequence[str | int] = [*fault["loc"], *(cause.place if isinstance(cause, Misplaced) else ())]
    unknown = fault["type"] == "extra_forbidden"
    return place, "unknown setting" if unknown else fault["msg"].removeprefix("Value error, ")


@dataclass(frozen=True)
class ConfigFile:
    """One file: its ``name`` for whoever reads a refusal, and its text."""

    name: str
    text: str

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Read it. Raises OSError, and UnicodeDecodeError (a ValueError)."""
        return cls(path.name, path.read_text(encoding="utf-8"))

    @cached_property
    def content(self) -> dict[str, Any]:
        """What it holds. Raises tomllib.TOMLDecodeError, a ValueError."""
        return tomllib.loads(self.text)

    def refusal(self, place: Place, what: str) -> SettingsError:
        """Return the error that says on which line the setting at ``place`` is, and what is wrong with it.

        A setting that is not there is looked for where it would stand: in the table around it.
        """
        line = self.line(place)
        where = f"{self.name}, line {line}" if line else self.name
        return SettingsError(": ".join(part for part in (where, dotted(place), what) if part))

    def line(self, place: Place) -> int:
        """Return the line, from 1, where the statement begins that sets ``place``; 0 where the file has nothing of it.

        An item of an array stands where its array begins.
        """
        while place and not _holds(self.content, place):
            place = place[:-1]
        if not place:
            return 0
        low, high = 1, len(self._lines)  # the fewest lines that hold it
        while low < high:
            middle = (low + high) // 2
            if _holds(self._beginning(middle)[1], place):
                high = middle
            else:
                low = middle + 1
        return self._beginning(low - 1)[0] + 1

    @cached_property
    def _lines(self) -> list[str]:
        return [f"{line}\n" for line in self.text.split("\n")]  # what else splits lines in Python is none in TOML

    def _beginning(self, count: int) -> tuple[int, dict[str, Any]]:
        """Return the most lines, up to ``count``, that end with a statement, and what they hold."""
        while count:
            try:
                return count, tomllib.loads("".join(self._lines[:count]))
            except tomllib.TOMLDecodeError:
                count -= 1
        return 0, {}


def _holds(found: Any, place: Place) -> bool:
    for part in place:
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
