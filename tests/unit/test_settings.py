"""Settings are read once, strictly; whatever is wrong is one clear line that holds no secret."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from inbox.errors import SettingsError
from inbox.settings import Settings, Timeouts, load_settings, token_hash

SECRET = "PLANTED-secret"
URL = f"postgresql://inbox:{SECRET}@127.0.0.1/inbox"
SOURCE = f'[sources.a]\ntypes = ["x"]\ntokens = ["{token_hash("a")}"]\n'


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test sets is set."""
    for name in [name for name in os.environ if name.startswith("INBOX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DATABASE_URL", URL)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the settings with this TOML file and these variables."""

    def load_with(toml: str | None = None, **variables: str) -> Settings:
        if toml is not None:
            path = tmp_path / "inbox.toml"
            path.write_text(toml, encoding="utf-8")
            monkeypatch.setenv("INBOX_CONFIG", str(path))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return load_settings()

    return load_with


def refusal(load: Any, toml: str | None = None, **variables: str) -> str:
    with pytest.raises(SettingsError) as refused:
        load(toml, **variables)
    text = str(refused.value)
    assert text
    assert "\n" not in text
    assert SECRET not in text
    shown = None if refused.value.__suppress_context__ else refused.value.__context__
    assert shown is None, "it would be printed too, with what was read"
    return text


def test_a_source_is_read_from_the_file_and_the_process_from_the_environment(load: Any) -> None:
    settings = load(SOURCE + 'zone = "Asia/Seoul"\norder = "sequence"\n', INBOX_NAME="second", INBOX_POOL="20")
    source = settings.source("a")
    assert source is not None
    assert (source.types, source.zone, source.order) == (("x",), "Asia/Seoul", "sequence")
    assert (source.tries, source.retry_interval) == (5, 60)
    assert (settings.name, settings.task_queue, settings.pool) == ("second", "second", 20)
    assert settings.source("b") is None


def test_without_a_file_there_are_no_sources(load: Any) -> None:
    assert load().declared.sources == {}


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        ('[sources.a]\ntypes = ["x"]\nspeling = 1', "sources.a.speling"),
        ("[sourcse.a]\ntypes = []", "sourcse"),
        ("[dispatch]\ntik = 1", "dispatch.tik"),
        ("[timeouts]\nlok = 1", "timeouts.lok"),
        (
            '[sources.a]\ntypes = ["x"]\n[sources.a.report]\nurl = "http://h"\nkey = "' + SECRET + '"',
            "sources.a.report.key",
        ),
        (SOURCE + '[legacy]\nsource = "a"\nheader = "x"', "legacy.header"),
    ],
)
def test_a_key_that_is_not_known_is_refused_by_its_place(load: Any, toml: str, place: str) -> None:
    assert refusal(load, toml).startswith(f"{place}: ")


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        ("[sources.a]\ntokens = []", "sources.a.types"),
        (f'[sources.a]\ntypes = ["x"]\ntokens = ["{SECRET}"]', "sources.a.tokens.0"),
        (f'[sources.a]\ntypes = ["x"]\ntokens = ["{token_hash("a").upper()}"]', "sources.a.tokens.0"),
        ('[sources.a]\ntypes = ["x"]\norder = "random"', "sources.a.order"),
        ('[sources.a]\ntypes = ["x"]\ntries = 0', "sources.a.tries"),
        ('[sources.a]\ntypes = ["x"]\nretry_interval = 0', "sources.a.retry_interval"),
        ('[sources.a]\ntypes = ["x"]\nzone = "Asia/Soul"', "sources.a.zone"),
        ('[sources.a]\ntypes = ["x"]\nzone = ""', "sources.a.zone"),
        ('[sources.a]\ntypes = ["x"]\nzone = "/etc/passwd"', "sources.a.zone"),
        (f'[sources.a]\ntypes = ["x"]\n[sources.a.report]\nurl = 3\ntoken = "{SECRET}"', "sources.a.report.url"),
        (
            f'[sources.a]\ntypes = ["x"]\n[sources.a.report]\nurl = "http://h"\ntoken = ["{SECRET}"]',
            "sources.a.report.token",
        ),
        (
            '[sources.a]\ntypes = ["x"]\n[sources.a.report]\nurl = "http://h"\ngive_up_after = 0',
            "sources.a.report.give_up_after",
        ),
        ("[dispatch]\nshare = 0", "dispatch.share"),
        ("[dispatch]\ncap = 0", "dispatch.cap"),
        ("[dispatch]\nconcurrency = 0", "dispatch.concurrency"),
        ("sources = 1", "sources"),
        ('[legacy]\nsource = "hospital"', "legacy.source"),
    ],
)
def test_a_value_that_can_not_work_is_refused_by_its_place(load: Any, toml: str, place: str) -> None:
    assert place in refusal(load, toml)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"INBOX_POOL": SECRET}, "pool"),
        ({"INBOX_POOL": "3"}, "pool"),
        ({"INBOX_POOL": "11"}, "INBOX_POOL must be at least INBOX_ACTIVITIES + INBOX_REPORT_ACTIVITIES + 2"),
        ({"INBOX_ACTIVITIES": "0"}, "activities"),
        ({"INBOX_NAME": "a/b"}, "name"),
        ({"INBOX_NAME": ""}, "name"),
        ({"INBOX_NAME": "a" * 65}, "name"),
        ({"INBOX_OPERATOR_TOKENS": f'["{SECRET}"]'}, "operator_tokens.0"),
        ({"INBOX_MAX_BODY": SECRET}, "max_body"),
    ],
)
def test_a_variable_that_can_not_work_is_refused_by_its_name(load: Any, variables: dict[str, str], named: str) -> None:
    assert named in refusal(load, **variables)


def test_the_database_has_to_be_named(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL")
    assert refusal(load) == "DATABASE_URL: Field required"


@pytest.mark.parametrize("toml", [f"{SECRET}", f'a = "{SECRET}\n', f'a = "{SECRET}"\na = "{SECRET}"', f"a = {SECRET}"])
def test_a_file_that_is_not_toml_is_refused_without_being_quoted(load: Any, toml: str) -> None:
    assert refusal(load, toml).startswith("INBOX_CONFIG: ")


def test_a_file_that_is_not_there_is_named(load: Any, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    assert missing in refusal(load, INBOX_CONFIG=missing)


CHAIN = ("lock", "heartbeat", "statement", "transaction", "start_to_close", "graceful_shutdown")


@pytest.mark.parametrize(("shorter", "longer"), [*itertools.pairwise(CHAIN), ("rpc", "lease")])
def test_time_outs_that_are_out_of_order_are_refused(load: Any, shorter: str, longer: str) -> None:
    as_long = getattr(Timeouts(), longer)
    said = refusal(load, f"[timeouts]\n{shorter} = {as_long}\n")
    assert f"{shorter} must be shorter than {longer}" in said
    assert said.startswith("timeouts")


def test_time_outs_may_all_move_together(load: Any) -> None:
    toml = "[timeouts]\n" + "".join(f"{name} = {100 + place}\n" for place, name in enumerate(CHAIN))
    assert load(toml).declared.timeouts.graceful_shutdown == 105


def test_the_time_outs_of_the_contract_are_the_defaults() -> None:
    chosen = Timeouts()
    assert [getattr(chosen, name) for name in CHAIN] == [3, 5, 10, 20, 30, 40]
    assert (chosen.rpc, chosen.lease) == (5, 10)


def test_settings_that_are_printed_show_no_secret(load: Any) -> None:
    toml = SOURCE + f'[sources.a.report]\nurl = "http://h"\ntoken = "{SECRET}"'
    settings = load(toml, INBOX_ID_KEY=SECRET)
    assert settings.id_key is not None
    assert settings.id_key.get_secret_value() == SECRET
    assert SECRET not in f"{settings!r} {settings} {settings.model_dump_json()} {settings.declared!r}"


def test_private_ids_need_the_key_of_their_hash(load: Any) -> None:
    private = '[sources.a]\ntypes = ["x"]\nprivate_ids = true\n'
    said = refusal(load, private)
    assert said.startswith("sources.a.private_ids: ")
    assert "INBOX_ID_KEY" in said
    assert load(private, INBOX_ID_KEY=SECRET).source("a").private_ids is True


def test_a_token_is_kept_as_a_hash_that_does_not_hold_it() -> None:
    assert token_hash("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert token_hash("abc") != token_hash("abd")
