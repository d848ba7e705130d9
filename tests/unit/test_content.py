"""Strict JSON, and the hash that names content (spec section 4)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inbox.errors import Malformed, Refused, Unreadable
from inbox.ingest.content import MAX_DEPTH, content_hash, parse_json

# A slow machine is no fault of what is tested.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


def nested(depth: int, opening: str, inner: str, closing: str) -> bytes:
    return (opening * depth + inner + closing * depth).encode()


@pytest.mark.parametrize(("opening", "inner", "closing"), [("[", "", "]"), ('{"a":', "1", "}"), ('[{"a":', "1", "}]")])
def test_json_may_nest_64_deep_and_no_deeper(opening: str, inner: str, closing: str) -> None:
    brackets = opening.count("[") + opening.count("{")
    parse_json(nested(MAX_DEPTH // brackets, opening, inner, closing))
    with pytest.raises(Malformed, match="deeper than 64"):
        parse_json(b"[" + nested(MAX_DEPTH // brackets, opening, inner, closing) + b"]")


def test_very_deep_json_is_refused_and_breaks_nothing() -> None:
    with pytest.raises(Malformed, match="deeper"):
        parse_json(b"[" * 500_000 + b"]" * 500_000)
    with pytest.raises(Malformed, match="deeper"):
        parse_json(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


@pytest.mark.parametrize(
    "text", ["[" * 100, '"' + "[{" * 100, "\\" + "[" * 100, "\\\\" + '"' + "{" * 100, '\\"' * 70 + "[" * 70, "]" * 90]
)
def test_brackets_inside_strings_do_not_count(text: str) -> None:
    assert parse_json(json.dumps({"a": [text]}).encode()) == {"a": [text]}


def test_a_string_that_looks_closed_does_not_hide_depth() -> None:
    with pytest.raises(Malformed, match="deeper"):
        parse_json(b'["\\"",' * 65 + b"1" + b"]" * 65)
    with pytest.raises(Malformed, match="deeper"):
        parse_json(b'["\\\\",' * 65 + b"1" + b"]" * 65)


def test_many_siblings_are_not_depth() -> None:
    assert len(parse_json(b"[" + b"[[]]," * 500 + b"[]]")) == 501


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{}x",
        b"{} {}",
        b"'a'",
        b"{a:1}",
        b"[1,]",
        b"01",
        b"+1",
        b".5",
        b"nul",
        b'"a\x00"',
        b'"a\nb"',
        b'"\\x"',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        '{"a": "한"}'.encode("euc-kr"),
        '{"a": 1}'.encode("utf-16"),
        b'"\xed\xa0\x80"',
    ],
)
def test_what_is_not_strict_json_in_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable):
        parse_json(body)


@given(st.one_of(st.binary(max_size=60), st.text('[]{}",:\\u0d8e+-.truefalsn NI한', max_size=60).map(str.encode)))
@UNTIMED
def test_any_bytes_are_json_or_refused_and_nothing_else(body: bytes) -> None:
    with contextlib.suppress(Refused):
        parse_json(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"NaN", "NaN"),
        (b"Infinity", "infinity"),
        (b"-Infinity", "infinity"),
        (b'{"a": [NaN]}', "NaN"),
        (b'{"a":1,"a":1}', "duplicate key"),
        (b'[{"b":{"a":1,"c":2,"a":3}}]', "duplicate key"),
        (b'{"\\u0061":1,"a":1}', "duplicate key"),
        (b"1" * 5000, "too many digits"),
    ],
)
def test_what_json_leaves_undefined_is_refused_with_what_is_wrong(body: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        parse_json(body)


def test_a_refusal_does_not_bring_the_body_along() -> None:
    for body in (
        b'{"PLANTED": ',
        b'{"PLANTED": 1, "PLANTED": 2}',
        b"PLANTED\xff",
        b'["PLANTED",' * 65 + b"1" + b"]" * 65,
    ):
        with pytest.raises(Refused) as refused:
            parse_json(body)
        assert "PLANTED" not in str(refused.value)
        assert refused.value.__suppress_context__ or refused.value.__context__ is None, "it would be printed too"


@given(VALUES)
@UNTIMED
def test_json_reads_back_as_it_was_written(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def backwards(value: Any) -> Any:
    """Return ``value`` with the keys of every object in reverse order."""
    if isinstance(value, dict):
        return {key: backwards(inner) for key, inner in reversed(value.items())}
    return [backwards(inner) for inner in value] if isinstance(value, list) else value


@given(VALUES)
@UNTIMED
def test_key_order_white_space_and_escapes_make_no_difference(value: Any) -> None:
    bodies = [
        json.dumps(value).encode(),
        json.dumps(backwards(value), indent=3, ensure_ascii=False).encode(),
        json.dumps(value, separators=(",", ":"), sort_keys=True).encode(),
    ]
    assert len({content_hash(parse_json(body), body) for body in bodies}) == 1


@pytest.mark.parametrize(
    "group", [["1", "1.0", "1e0", "10e-1"], ["0", "-0", "0.0", "-0.0"], ["100", "1E2"], ["0.5", "5e-1"]]
)
def test_one_number_in_several_spellings_is_one_content(group: list[str]) -> None:
    assert len({content_hash(parse_json(text.encode()), text.encode()) for text in group}) == 1


def test_different_values_have_different_hashes() -> None:
    values = [
        *[
            None,
            True,
            False,
            0,
            1,
            -1,
            0.1,
            2**53 - 1,
            2**53 - 2,
            "",
            "0",
            "1",
            "null",
            "true",
            "한",
            "한 ",
            "e\u0301",
            "\u00e9",
        ],
        *[
            [],
            [[]],
            {},
            [0],
            ["0"],
            [0, 1],
            [1, 0],
            {"a": None},
            {"a": 1},
            {"b": 1},
            {"a": 1, "b": 2},
            {"a": [1], "b": 2},
        ],
    ]
    assert len({content_hash(value, b"the same") for value in values}) == len(values)


def test_the_hash_is_of_the_canonical_form() -> None:
    assert content_hash({"b": 1.0, "a": "한"}, b"") == hashlib.sha256('{"a":"한","b":1}'.encode()).digest()


@pytest.mark.parametrize(
    "body",
    [
        b"9007199254740993",
        b"[-9007199254740993]",
        b"1e400",
        b'{"a": -1e999}',
        b'"\\ud800"',
        b'{"\\udc00": 1}',
        b"1" * 400,
    ],
)
def test_what_has_no_canonical_form_is_named_by_its_bytes(body: bytes) -> None:
    value = parse_json(body)
    assert content_hash(value, body) == hashlib.sha256(body).digest()
    assert content_hash(value, body + b" ") != content_hash(value, body)


def test_neighbouring_integers_beyond_2_53_are_different_contents() -> None:
    bodies = [str(2**53 + offset).encode() for offset in range(5)]
    hashes = [content_hash(parse_json(body), body) for body in bodies]
    assert all(one != other for one, other in itertools.combinations(hashes, 2))
