"""What operators read in the Temporal UI."""

import pytest

from inbox.message import Key, workflow_id
from inbox.references import RegisterResult, Tried
from workflows.details import closed_message, failed_message, open_message

PLAIN = workflow_id("inbox", Key("", "p", "a/1", 2))
PRIVATE = workflow_id("inbox", Key("", "p", "a/1"), private=True, secret=b"s")
HINT = "register the form, then redrive"


@pytest.mark.parametrize(
    ("waiting", "said"), [(0, None), (1, "wait: 1."), (999, "wait: 999."), (1000, "wait: 1000 or more.")]
)
def test_they_say_how_many_wait_behind_it(waiting: int, said: str | None) -> None:
    for text in (
        failed_message(PLAIN, Tried(1, 5, "CODE", HINT, 60, waiting)),
        closed_message(PLAIN, RegisterResult("DEAD", "CODE", HINT, waiting)),
    ):
        assert said in text if said else "wait:" not in text


def test_they_name_the_command_with_the_key() -> None:
    assert "`p/a%2F1~2`" in open_message(PLAIN)
    assert "`inbox discard p/a%2F1~2`" in failed_message(PLAIN, Tried(1, 5, "CODE", HINT, 60))
    assert "`inbox redrive p/a%2F1~2`" in closed_message(PLAIN, RegisterResult("DEAD", "CODE"))


def test_a_hash_is_not_shown_as_a_key() -> None:
    texts = (
        open_message(PRIVATE),
        failed_message(PRIVATE, Tried(1, 5, "CODE", HINT, 60)),
        closed_message(PRIVATE, RegisterResult("DEAD", "CODE")),
        closed_message(PRIVATE, RegisterResult("COMPLETED")),
    )
    digest = PRIVATE.rpartition("/")[2]
    for text in texts:
        assert digest not in text
        assert "by this workflow ID" in text


def test_a_hint_of_a_redrive_is_set_right_while_tries_are_left() -> None:
    assert f"{HINT}. (The next try needs no redrive.)" in failed_message(PLAIN, Tried(1, 5, "CODE", HINT, 60))
    assert f"{HINT}.\n" in closed_message(PLAIN, RegisterResult("DEAD", "CODE", HINT))
