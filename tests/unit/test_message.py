"""A message's identity: keys, limits, workflow IDs (spec sections 4, 6, 14)."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inbox.errors import Malformed
from inbox.message import LIMITS, MAX_WORKFLOW_ID, Key, check_text, quote_part, workflow_id

# A slow machine is no fault of what is tested.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

AWKWARD = "/~%?# +&=:.-_한글Ўқ😀é\n"
CHARACTERS = st.one_of(st.sampled_from(AWKWARD), st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
PARTS = st.text(CHARACTERS, min_size=1, max_size=40)
EDITIONS = st.one_of(st.none(), st.integers(2, 10**6))
KEYS = st.builds(Key, st.one_of(st.just(""), PARTS), PARTS, PARTS, EDITIONS)
NAMES = st.from_regex(r"\A[A-Za-z0-9._-]{1,64}\Z")


def filled(limit: int) -> st.SearchStrategy[str]:
    """Return texts of any length up to ``limit`` bytes; one character repeated, so that long ones are cheap."""
    return st.builds(
        lambda start, character, size: (start + character * size).encode()[:size].decode(errors="ignore"),
        st.text(CHARACTERS, max_size=3),
        st.sampled_from("a/~%한😀"),
        st.integers(1, limit),
    ).filter(bool)


LONG_KEYS = st.builds(
    Key,
    st.one_of(st.just(""), filled(LIMITS["tenant"])),
    filled(LIMITS["source"]),
    filled(LIMITS["id"]),
    EDITIONS,
)


@given(KEYS)
@UNTIMED
@example(Key("", "/ehr/seoul", "a/b~2%2F~", 3))
@example(Key("t~1", "urn:한글", "😀/%7E", None))
def test_a_key_reads_back_as_it_was_written(key: Key) -> None:
    assert Key.parse(str(key)) == key


@given(KEYS)
@UNTIMED
def test_a_written_key_is_safe_in_a_path_and_on_a_command_line(key: Key) -> None:
    assert str(key).isascii()
    assert not set(str(key)) & set(" ?#\n&'\"")


@given(PARTS)
@UNTIMED
def test_a_part_can_not_be_taken_for_two_parts_or_for_an_edition(part: str) -> None:
    assert not {"/", "~"} & set(quote_part(part))


def test_a_key_names_its_parts_in_order() -> None:
    assert Key.parse("hospital/P1") == Key("", "hospital", "P1")
    assert Key.parse("seoul/hospital/P1~12") == Key("seoul", "hospital", "P1", 12)
    assert str(Key("seoul", "a/b", "P~1", 2)) == "seoul/a%2Fb/P%7E1~2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hospital",
        "a/b/c/d",
        "a/b~",
        "a/b~0",
        "a/b~-1",
        "a/b~x",
        "a/b~２",
        "a/b~1~2",
        "a/%ff",
        "a~2/b",
        "a/%00",
        "a/\udcff",
    ],
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(Malformed) as refused:
        Key.parse(text)
    assert refused.value.field == "key"


@given(NAMES, LONG_KEYS, st.booleans())
@UNTIMED
@example("i" * 64, Key("한" * 21, "한" * 85, "한" * 170, 10**6), False)
@example("i" * 64, Key("한" * 21, "한" * 85, "한" * 170, 10**6), True)
def test_a_workflow_id_is_never_longer_than_temporal_takes(name: str, key: Key, private: bool) -> None:
    made = workflow_id(name, key, private=private, secret=b"secret")
    assert made.isascii()
    assert len(made) <= MAX_WORKFLOW_ID == 900
    assert made.startswith(f"{name}/")


@given(LONG_KEYS, LONG_KEYS, st.booleans())
@UNTIMED
def test_two_messages_never_share_a_workflow_id(one: Key, other: Key, private: bool) -> None:
    made = [workflow_id("inbox", key, private=private, secret=b"secret") for key in (one, other)]
    assert (made[0] == made[1]) == (one == other)


@pytest.mark.parametrize("private", [False, True])
def test_neighbouring_keys_have_workflow_ids_of_their_own(private: bool) -> None:
    long = "한" * 170
    keys = [
        Key("", "a", "b/c"),
        Key("", "a/b", "c"),
        Key("a", "b", "c"),
        Key("", "a", "b"),
        Key("", "a", "b", 2),
        Key("", "a", "b~2"),
        Key("", "a", "b%7E2"),
        Key("", "한" * 85, long),
        Key("", "한" * 85, long[:-1] + "글"),
        Key("", "한" * 84 + "글", long),
        Key("t", "한" * 85, long),
        Key("t", "한" * 85, long, 2),
        Key("t", "한" * 85, long, 3),
    ]
    assert len({workflow_id("inbox", key, private=private, secret=b"s") for key in keys}) == len(keys)


def test_a_plain_workflow_id_is_the_inbox_and_the_key() -> None:
    assert workflow_id("inbox", Key("", "hospital", "P/1", 2)) == "inbox/hospital/P%2F1~2"
    assert workflow_id("inbox", Key("seoul", "hospital", "P1")) == "inbox/seoul/hospital/P1"


@given(LONG_KEYS.filter(lambda key: len(key.id) > 8))
@UNTIMED
def test_a_private_workflow_id_does_not_hold_the_message_id(key: Key) -> None:
    made = workflow_id("inbox", Key("", "source", key.id, key.edition), private=True, secret=b"secret")
    assert made.startswith("inbox/source/")
    assert key.id not in made
    assert quote(key.id, safe="") not in made


def test_a_private_workflow_id_can_not_be_made_without_the_secret() -> None:
    key = Key("", "hospital", "P1")
    first, again, other = (workflow_id("inbox", key, private=True, secret=secret) for secret in (b"1", b"1", b"2"))
    assert first == again != other


@pytest.mark.parametrize("field", sorted(LIMITS))
@pytest.mark.parametrize("character", ["a", "é", "한", "😀"])
def test_a_limit_counts_utf8_bytes(field: str, character: str) -> None:
    width = len(character.encode())
    fitting = character * (LIMITS[field] // width)
    fitting += "a" * (LIMITS[field] - len(fitting.encode()))
    assert check_text(field, fitting) == fitting
    with pytest.raises(Malformed) as refused:
        check_text(field, fitting + "a")
    assert refused.value.field == field
    assert str(LIMITS[field]) in refused.value.detail


def test_the_limits_are_those_of_the_contract() -> None:
    assert LIMITS == {"tenant": 64, "source": 255, "id": 512, "type": 255, "subject": 512}


@pytest.mark.parametrize(
    "value", ["", " ", "\t\n", "\u3000", "a\0", "\0", "a\ud800", "\udc00", None, 1, b"a", ["a"], {}]
)
def test_what_can_not_stand_in_a_field_is_refused_by_the_senders_name_for_it(value: object) -> None:
    with pytest.raises(Malformed) as refused:
        check_text("id", value, name="srvyDrawupNo")
    assert refused.value.field == "srvyDrawupNo"


@given(st.text(min_size=1, max_size=8))
@UNTIMED
def test_a_text_is_returned_as_it_is_or_refused_without_being_repeated(value: str) -> None:
    planted = f"{value}PLANTED{value}"
    lone = any("\ud800" <= character <= "\udfff" for character in value)
    if "\0" not in value and not lone:
        assert check_text("id", planted) == planted
        return
    with pytest.raises(Malformed) as refused:
        check_text("id", planted)
    assert "PLANTED" not in str(refused.value)
