"""Settings are read once, strictly; whatever is wrong is one clear line that holds no secret."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from inbox.errors import SettingsError
from inbox.settings import Settings, load_settings
from inbox.sources import SourceSettings, token_hash
from inbox.timeouts import Timeouts

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
    assert (settings.name, settings.task_queue("a"), settings.pool) == ("second", "second", 20)
    assert settings.source("b") is None


def test_without_a_file_there_are_no_sources(load: Any) -> None:
    assert load().declared.sources == {}


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[sources.a]\ntypes = ["x"]\nspeling = 1', "line 3: sources.a.speling"),
        ("# the sources\n\n[sourcse.a]\ntypes = []", "line 3: sourcse"),
        ("[dispatch]\ntik = 1", "line 2: dispatch.tik"),
        ("[timeouts]\nlok = 1", "line 2: timeouts.lok"),
        ("timeouts.lok = 1", "line 1: timeouts.lok"),
        (
            '[sources.a]\ntypes = ["x"]\n[sources.a.report]\nurl = "http://h"\nkey = "' + SECRET + '"',
            "line 5: sources.a.report.key",
        ),
        (SOURCE + '[legacy]\nsource = "a"\nheader = "x"', "line 6: legacy.header"),
        (SOURCE + "codes = { LATE = { hnt = 'x' } }", "line 4: sources.a.codes.LATE.hnt"),
        (SOURCE + "[sources.a.codes.LATE]\nretri = false", "line 5: sources.a.codes.LATE.retri"),
    ],
)
def test_a_key_that_is_not_known_is_refused_by_its_line(load: Any, toml: str, said: str) -> None:
    assert refusal(load, toml) == f"inbox.toml, {said}: unknown setting"


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('order = "random"', "order: Input should be 'arrival', 'sequence' or 'none'"),
        ('on_dead = "stop"', "on_dead: Input should be 'release' or 'park'"),
        ('auth = "basic"', "auth: Input should be 'token' or 'none'"),
        ("retry_cap = 59", "retry_cap: must not be smaller than retry_interval"),
        ("codes.LATE = {}", "codes.LATE: gives neither a hint nor retry"),
        ("codes.TRY_LOST.retry = false", "codes.TRY_LOST.retry: the code is the inbox's own: it takes a hint alone"),
        ('task_queue = "inbox-report"', "task_queue: is the task queue of reports"),
    ],
)
def test_a_policy_that_is_not_known_or_can_not_work_is_refused_by_its_line(load: Any, toml: str, said: str) -> None:
    assert refusal(load, SOURCE + toml) == f"inbox.toml, line 4: sources.a.{said}"


def test_what_does_not_go_together_is_refused_by_its_line(load: Any) -> None:
    assert refusal(load, '[legacy]\nsource = "b"').startswith("inbox.toml, line 2: legacy.source: names 'b'")
    said = refusal(load, SOURCE + '[legacy]\ntype = "y"\nsource = "a"')
    assert said == "inbox.toml, line 5: legacy.type: 'y' is not among the types of sources.a"
    assert refusal(load, SOURCE + '[sources." "]\ntypes = []').startswith('inbox.toml, line 4: sources." ": ')


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        ("[sources.a]\ntokens = []", "sources.a.types"),
        (f'[sources.a]\ntypes = ["x"]\ntokens = ["{SECRET}"]', "sources.a.tokens.0"),
        (f'[sources.a]\ntypes = ["x"]\ntokens = ["{token_hash("a").upper()}"]', "sources.a.tokens.0"),
        ('[sources.a]\ntypes = ["x"]\norder = "random"', "sources.a.order"),
        ('[sources.a]\ntypes = ["x"]\ntries = 0', "sources.a.tries"),
        ('[sources.a]\ntypes = ["x"]\nretry_interval = 0', "sources.a.retry_interval"),
        ('[sources.a]\ntypes = ["x"]\nretry_growth = 0.9', "sources.a.retry_growth"),
        ('[sources.a]\ntypes = ["x"]\nretry_growth = inf', "sources.a.retry_growth"),
        ('[sources.a]\ntypes = ["x"]\ntask_queue = ""', "sources.a.task_queue"),
        ('[sources.a]\ntypes = ["x"]\ntask_queue = "a/b"', "sources.a.task_queue"),
        ('[sources.a]\ntypes = ["x"]\ncodes.LATE.hint = ""', "sources.a.codes.LATE.hint"),
        ('[sources.a]\ntypes = ["x"]\ncodes.LATE = false', "sources.a.codes.LATE"),
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
        ({"INBOX_TASK_QUEUES": '["inbox", ""]'}, "task_queues.1"),
        ({"INBOX_TASK_QUEUES": '["inbox-report"]'}, "INBOX_TASK_QUEUES: inbox-report is the queue of reports"),
        (
            {"INBOX_TASK_QUEUES": '["a", "b"]', "INBOX_ACTIVITIES": "1"},
            "INBOX_ACTIVITIES must be at least 1 for each of 2 task queues",
        ),
        ({"INBOX_NAME": ""}, "name"),
        ({"INBOX_NAME": "a" * 65}, "name"),
        ({"INBOX_OPERATOR_TOKENS": f'["{SECRET}"]'}, "operator_tokens.0"),
        ({"INBOX_MAX_BODY": SECRET}, "max_body"),
        ({"INBOX_REDIS_URL": ""}, "redis_url: must be redis://"),
        ({"INBOX_REDIS_URL": SECRET}, "redis_url: must be redis://"),
        ({"INBOX_REDIS_URL": "redis://"}, "redis_url: must be redis://"),
        ({"INBOX_REDIS_URL": f"http://:{SECRET}@h:6379/0"}, "redis_url: must be redis://"),
        ({"INBOX_REDIS_URL": f"valkey://:{SECRET}@h:6379/0"}, "redis_url: must be redis://"),
        ({"INBOX_REDIS_URL": f"redis://:{SECRET}@h:{SECRET}/0"}, "redis_url: must be redis://"),
        ({"INBOX_REDIS_URL": f"redis://:{SECRET}@h:65536/0"}, "redis_url: must be redis://"),
        ({"INBOX_REDIS_URL": f"redis://:{SECRET}@[h:6379/0"}, "redis_url: must be redis://"),
        ({"INBOX_REDIS_URL": f"redis://:a/{SECRET}@h:6379/0"}, "redis_url: must be redis://"),
        ({"INBOX_REDIS_URL": f"redis://:{SECRET}@h/first"}, "redis_url: must be redis://"),
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
    assert said == f"inbox.toml, line 2: timeouts.{shorter}: {shorter} must be shorter than {longer}"


def test_time_outs_that_are_out_of_order_are_refused_by_the_line_that_is_there(load: Any) -> None:
    said = refusal(load, "[timeouts]\nrpc = 4\nlease = 3\n")
    assert said == "inbox.toml, line 2: timeouts.rpc: rpc must be shorter than lease"
    said = refusal(load, "[timeouts]\nconnect = 4\nlease = 3\n")
    assert said == "inbox.toml, line 3: timeouts.lease: rpc must be shorter than lease"


def test_time_outs_stretch_for_a_longer_try_and_keep_their_distances() -> None:
    stretched = Timeouts().stretched(100)
    assert (stretched.transaction, stretched.start_to_close, stretched.graceful_shutdown) == (90, 100, 110)
    assert (stretched.lock, stretched.heartbeat, stretched.statement) == (3, 5, 10)
    assert Timeouts().stretched(30) == Timeouts().stretched(0) == Timeouts()


def test_time_outs_may_all_move_together(load: Any) -> None:
    toml = "[timeouts]\n" + "".join(f"{name} = {100 + place}\n" for place, name in enumerate(CHAIN))
    assert load(toml).declared.timeouts.graceful_shutdown == 105


def test_the_time_outs_of_the_contract_are_the_defaults() -> None:
    chosen = Timeouts()
    assert [getattr(chosen, name) for name in CHAIN] == [3, 5, 10, 20, 30, 40]
    assert (chosen.rpc, chosen.lease) == (5, 10)


def test_settings_that_are_printed_show_no_secret(load: Any) -> None:
    toml = SOURCE + f'[sources.a.report]\nurl = "http://h"\ntoken = "{SECRET}"'
    settings = load(toml, INBOX_ID_KEY=SECRET, INBOX_REDIS_URL=f"redis://:{SECRET}@h")
    assert settings.id_key is not None
    assert settings.id_key.get_secret_value() == SECRET
    assert SECRET not in f"{settings!r} {settings} {settings.model_dump_json()} {settings.declared!r}"


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://h:6379/0", "rediss://user:p%2Fw@[::1]:6380/15?ssl_ca_certs=/ca.pem"]
)
def test_the_address_of_a_shared_cache_is_one_of_redis(load: Any, url: str) -> None:
    assert load(INBOX_REDIS_URL=url).redis_url.get_secret_value() == url


def test_private_ids_need_the_key_of_their_hash(load: Any) -> None:
    private = '[sources.a]\ntypes = ["x"]\nprivate_ids = true\n'
    said = refusal(load, private)
    assert said.startswith("inbox.toml, line 3: sources.a.private_ids: ")
    assert "INBOX_ID_KEY" in said
    assert load(private, INBOX_ID_KEY=SECRET).source("a").private_ids is True


def test_a_token_is_kept_as_a_hash_that_does_not_hold_it() -> None:
    assert token_hash("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert token_hash("abc") != token_hash("abd")


def test_the_next_try_comes_later_each_time_and_no_later_than_the_cap() -> None:
    plain = SourceSettings(types=("x",))
    assert [plain.retry_after(tries) for tries in (1, 2, 1000)] == [60, 60, 60]
    growing = SourceSettings(types=("x",), retry_interval=10, retry_growth=3, retry_cap=100)
    assert [growing.retry_after(tries) for tries in (1, 2, 3, 4, 1000)] == [10, 30, 90, 100, 100]
    unlimited = SourceSettings(types=("x",), retry_growth=2)
    assert unlimited.retry_after(11) == 60 * 1024
    assert unlimited.retry_after(2000) == 10 * 365 * 24 * 3600  # too large for a float, and still a time


def test_a_source_has_a_task_queue_of_its_own_or_the_inboxs(load: Any) -> None:
    toml = SOURCE + 'task_queue = "bulk"\n[sources.b]\ntypes = ["x"]\n'
    settings = load(toml, INBOX_NAME="second")
    assert [settings.task_queue(source) for source in ("a", "b", "unknown")] == ["bulk", "second", "second"]
    assert settings.queues == {"bulk": 5, "second": 5}
    assert load(toml, INBOX_TASK_QUEUES='["bulk"]').queues == {"bulk": 10}


@pytest.mark.parametrize(("activities", "shares"), [(2, [1, 1]), (3, [2, 1]), (11, [6, 5])])
def test_task_queues_share_the_activities_so_that_the_pool_holds_them(
    load: Any, activities: int, shares: list[int]
) -> None:
    settings = load(INBOX_TASK_QUEUES='["a", "b"]', INBOX_ACTIVITIES=str(activities), INBOX_POOL="17")
    assert list(settings.queues.values()) == shares
    assert sum(settings.queues.values()) + settings.report_activities + 2 <= settings.pool
