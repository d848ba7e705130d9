"""A refusal names the line, whichever of TOML's forms a setting is written in."""

from __future__ import annotations

from typing import Any

import pytest

from inbox.configfile import ConfigFile, dotted

TEXT = '''\
# sources.a.tries = 1, in a comment
title = """
[sources.a]
tries = 2
"""

[sources.a]
types = [
    "x",  # sources.a.tries
    "y",
]
tries = 5
report.url = "http://h"
report . token = "t"

[sources."a.b"]
types = ["z"]
'tries' = 1
"order" = "none"

[sources.c]  # with an inline table
codes = { LATE = { hint = "wait", retry = true }, "ODD CODE" = { hint = "#" } }

  [ sources . c . report ]
  url = "http://h"

[[servers]]
name = "one"

[[servers]]
name = "two"
[servers.limits]
size = 3
[[servers.ports]]
number = 1
[[servers.ports]]
number = 2

[handlers]
survey.url = "http://h"
'''


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (["title"], 2),
        (["sources", "a"], 7),
        (["sources", "a", "types"], 8),
        (["sources", "a", "types", 1], 8),  # an item: where its array begins
        (["sources", "a", "tries"], 12),
        (["sources", "a", "report"], 13),
        (["sources", "a", "report", "url"], 13),
        (["sources", "a", "report", "token"], 14),
        (["sources", "a.b", "types", 0], 17),
        (["sources", "a.b", "tries"], 18),
        (["sources", "a.b", "order"], 19),
        (["sources", "c", "codes", "LATE", "retry"], 22),
        (["sources", "c", "codes", "ODD CODE", "hint"], 22),
        (["sources", "c", "report"], 24),
        (["sources", "c", "report", "url"], 25),
        (["servers", 0, "name"], 28),
        (["servers", 1], 30),
        (["servers", 1, "name"], 31),
        (["servers", 1, "limits", "size"], 33),
        (["servers", 1, "ports", 0, "number"], 35),
        (["servers", 1, "ports", 1, "number"], 37),
        (["handlers", "survey"], 40),
        (["handlers", "survey", "url"], 40),
        # What is not there stands where it would: in the table around it.
        (["sources", "a.b", "zone"], 16),
        (["sources", "c", "report", "token"], 24),
        (["servers", 2, "name"], 27),
        (["sources", "a", "tries", "deeper"], 12),
        (["dispatch"], 0),
        ([], 0),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_setting_is_found_on_its_line(place: list[Any], line: int, newline: str) -> None:
    assert ConfigFile("inbox.toml", TEXT.replace("\n", newline)).line(place) == line


def test_every_line_of_a_long_file_is_found() -> None:
    text = "".join(f"[sources.s{n}]\ntypes = [\n  'x']\n" for n in range(300))
    file = ConfigFile("inbox.toml", text)
    assert [file.line(["sources", f"s{n}", "types"]) for n in range(300)] == [3 * n + 2 for n in range(300)]


def test_what_splits_lines_elsewhere_splits_none_here() -> None:
    assert ConfigFile("f", "# a\u2028b\x85c\na = 1\nb = '\u2029'\nc = 2").line(["c"]) == 4


def test_a_refusal_says_file_line_path_and_fault() -> None:
    file = ConfigFile("inbox.toml", TEXT)
    assert str(file.refusal(["sources", "a.b", "order"], "unknown")) == (
        'inbox.toml, line 19: sources."a.b".order: unknown'
    )
    assert str(file.refusal([], "nothing fits")) == "inbox.toml: nothing fits"


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (["a", "b-c_1", 0], "a.b-c_1.0"),
        (["a b", "c"], '"a b".c'),
        (["환자", ""], '"환자".""'),
        (["a\nb\0"], r'"a\nb\u0000"'),
    ],
)
def test_a_path_is_written_as_toml_writes_it_on_one_line(place: list[Any], shown: str) -> None:
    assert dotted(place) == shown
