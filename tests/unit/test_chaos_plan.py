"""The same seed draws the same messages and faults, and a run has of everything what it says."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from deploy.chaos.options import HOSPITAL, NUMBERED, SOURCES, Options, WrongOption, toml
from deploy.chaos.plan import CROWD, INGESTS, KILL, LOCK, POSTGRES, STOP, TEMPORAL, WORKERS, draw_faults
from deploy.chaos.traffic import draw
from inbox.sources import Sources


def options(**environment: str) -> Options:
    return Options.read({"SEED": "7", "MESSAGES": "1000", "KILLS": "60", "DATA": "/data", **environment})


def test_the_same_seed_draws_the_same_and_another_draws_another() -> None:
    assert draw(options()) == draw(options())
    assert draw_faults(options()) == draw_faults(options())
    assert draw(options()) != draw(options(SEED="8"))
    assert draw_faults(options()) != draw_faults(options(SEED="8"))


def test_a_run_has_as_many_messages_and_kills_as_were_asked_for() -> None:
    traffic, faults = draw(options()), draw_faults(options())
    assert (len(traffic.messages), len({message.key for message in traffic.messages})) == (1000, 1000)
    assert sum(fault.what == KILL for fault in faults) == 60
    assert 90 <= len(faults) <= 100
    assert draw_faults(options(KILLS="0")) == []


def test_every_kind_of_fault_comes_to_everybody() -> None:
    faults = draw_faults(options())
    kinds = Counter((fault.what, fault.whom.rstrip(" 123")) for fault in faults)
    assert set(kinds) == {
        *((what, whom) for what in (KILL, STOP) for whom in ("ingest", "worker", TEMPORAL, POSTGRES)),
        (LOCK, POSTGRES),
        (CROWD, POSTGRES),
    }
    assert {fault.whom for fault in faults} == {*INGESTS, *WORKERS, TEMPORAL, POSTGRES}
    stops = [fault.lasts for fault in faults if (fault.what, fault.whom[:6]) == (STOP, "worker")]
    assert min(stops) < 5 < max(stops)  # the heartbeat time-out
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert max(fault.at for fault in faults) <= options().seconds


def test_traffic_has_duplicates_reuse_failures_subjects_and_all_orders() -> None:
    traffic = draw(options())
    deliveries = [delivery for sender in traffic.lists for delivery in sender]
    first = {message.key for message in traffic.messages}
    assert {delivery.message.key for delivery in deliveries} == first
    assert sum(not delivery.reuse for delivery in deliveries) > len(first)
    assert any(delivery.reuse for delivery in deliveries)
    assert {message.source for message in traffic.messages} == set(SOURCES)
    assert {"completes", "either", "INVALID_PAYLOAD", "FORM_NOT_REGISTERED"} <= {m.fate for m in traffic.messages}
    assert any(message.notice for message in traffic.messages)
    assert {message.legacy for message in traffic.messages if message.source == HOSPITAL} == {True, False}
    for sender in traffic.lists:  # a reused ID comes after what it was used for
        seen = set()
        for delivery in sender:
            assert not delivery.reuse or delivery.message.key in seen
            seen.add(delivery.message.key)


def test_numbers_of_a_subject_are_whole_and_shuffled() -> None:
    subjects: dict[str | None, list[int]] = {}
    for message in draw(options()).messages:
        if message.source == NUMBERED and message.number is not None:
            subjects.setdefault(message.subject, []).append(message.number)
    for numbers in subjects.values():
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert any(numbers != sorted(numbers) for numbers in subjects.values())


def test_options_have_defaults_and_refuse_what_is_no_number() -> None:
    found = Options.read({})
    assert (found.messages, found.kills, found.summary, found.folder) == (
        2000,
        25,
        None,
        Path(".data/chaos").absolute(),
    )
    assert found.seed != Options.read({}).seed
    assert Options.read({"SEED": "", "MESSAGES": ""}).messages == 2000
    for name, value in (("KILLS", "-1"), ("MESSAGES", "0"), ("SEED", "x"), ("MESSAGES", "٣")):
        with pytest.raises(WrongOption, match=name):
            Options.read({name: value})


def test_the_settings_of_a_run_are_settings_of_the_inbox() -> None:
    tokens = dict.fromkeys(SOURCES, "token")
    found = Sources.model_validate(tomllib.loads(toml(tokens, "http://127.0.0.1:1")))
    assert {name: source.order for name, source in found.sources.items()} == {
        "hospital": "arrival",
        "ward": "arrival",
        "ledger": "arrival",
        "report-producer": "none",
        "seq-producer": "sequence",
    }
    assert (found.timeouts, found.dispatch) == (Sources().timeouts, Sources().dispatch)
