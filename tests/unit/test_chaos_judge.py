"""The proof of `make chaos` can fail: for each rule, evidence that is good but for one thing, and what the rule says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deploy.chaos.evidence import BUNDLE, Evidence, Line, Report, Row, Seen
from deploy.chaos.judge import RULES, judge
from deploy.chaos.outside import Command
from deploy.chaos.senders import Heard
from deploy.chaos.traffic import Message

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Key = tuple[str, str]
SURVEY, LEDGER, NUMBERED, WARD = "hospital", "ledger", "seq-producer", "ward"


def message(source: str, name: str, **changes: Any) -> Message:
    surveys = source in (SURVEY, WARD)
    content = {"srvyDrawupNo": name} if surveys else {"counter": f"{source}:s", "of": name}
    given: dict[str, Any] = {
        "source": source,
        "id": name,
        "type": "survey.send" if surveys else "report.count",
        "subject": "s",
        "number": None,
        "data": content,
        "fate": "completes",
        "notice": False,
        "legacy": False,
    }
    return Message(**given | changes)


class Made:
    """Evidence of a good run, message by message in the order of their arrival."""

    def __init__(self) -> None:
        self.sent: dict[Key, Message] = {}
        self.heard: dict[Key, Heard] = {}
        self.rows: dict[Key, Row] = {}
        self.seen: list[Seen] = []
        self.commands: list[Command] = []
        self.moved: dict[str, int] = {}

    def add(self, sent: Message, **changes: Any) -> Key:
        """Add a message that completed, unless ``changes`` of its row say otherwise."""
        number, key = len(self.rows) + 1, sent.key
        self.sent[key] = sent
        self.heard[key] = Heard(number * 10.0, number * 10.0 + 1, deliveries=2, created=1)
        applied = changes.get("status", "COMPLETED") == "COMPLETED" and changes.get("outcome") != "obsolete"
        outcome: Any = {"sent": True}
        if sent.counter:
            self.moved[sent.counter] = self.moved.get(sent.counter, 0) + applied
            outcome = {"value": self.moved[sent.counter]}
        surveys = sent.type == "survey.send" and applied
        given: dict[str, Any] = {
            "row": number,
            "source": sent.source,
            "id": sent.id,
            "status": "COMPLETED",
            "subject": sent.subject,
            "number": sent.number,
            "generation": 1,
            "tries": 1,
            "tries_before": 0,
            "max_tries": 5,
            "code": None,
            "outcome": outcome if applied else None,
            "parked": False,
            "held": False,
            "received_at": NOON + timedelta(seconds=number * 10),
            "closed_at": NOON + timedelta(seconds=number * 10 + 5),
            "data": sent.data,
            "places": dict.fromkeys(BUNDLE, (1, number)) if surveys else {},
        }
        self.rows[key] = Row(**given | changes)
        for report in self.rows[key].reports:
            if report.state == "SENT":
                self.tell(report, sent.id)
        return key

    def tell(self, report: Report, name: str, status: int = 200) -> None:
        """Let upstream hear a report."""
        result = "N" if report.kind == "DEAD" else "Y"
        body = {"srvyDrawupNo": name, "result": result, "code": report.code, "reason": "why"}
        self.seen.append(Seen(report.workflow_id, body, status))

    def change(self, key: Key, **changes: Any) -> None:
        """Change a row."""
        self.rows[key] = replace(self.rows[key], **changes)

    def evidence(self, **changes: Any) -> Evidence:
        """Return all of it."""
        given: dict[str, Any] = {
            "sent": self.sent,
            "heard": self.heard,
            "rows": self.rows,
            "strays": [],
            "counters": dict(self.moved),
            "seen": self.seen,
            "commands": self.commands,
        }
        return Evidence(**given | changes)


DEATH = Report("DEAD", "SENT", "FORM_NOT_REGISTERED", "inbox-report/hospital/H-dead/1", 2)
FIRST = Report("DEAD", "SENT", "TRY_LOST", "inbox-report/hospital/H-redriven/1", 1)
CORRECTION = Report("CORRECTION", "SENT", "CORRECTION", "inbox-report/hospital/H-redriven/2", 1)
LATE = Report("NOT_SENT", "SENT", "NOT_SENT", "inbox-report/hospital/H-late/1", 1)
PARKED = Report("DEAD", "SENT", "FORM_NOT_REGISTERED", "inbox-report/ward/W-parked/1", 1)
WITHDRAWN = Report("DEAD", "WITHDRAWN", "INVALID_PAYLOAD", "inbox-report/seq-producer/S-2/1", 1)
AGAIN = Report("DEAD", "SENT", "INVALID_PAYLOAD", "inbox-report/seq-producer/S-2/2", 1)


def lines(code: str, count: int) -> tuple[Line, ...]:
    return tuple(Line(number, code, NOON) for number in range(1, count + 1))


def a_good_run() -> Made:
    made = Made()
    for name in ("H-1", "H-2", "H-3"):
        made.add(message(SURVEY, name))
    dying = message(SURVEY, "H-dead", fate="FORM_NOT_REGISTERED")
    dead = {"status": "DEAD", "code": "FORM_NOT_REGISTERED", "tries": 5, "lines": lines("FORM_NOT_REGISTERED", 5)}
    made.add(dying, **dead, reports=(DEATH,))
    made.tell(DEATH, "H-dead", 503)
    redriven = {"generation": 2, "tries": 6, "tries_before": 5, "lines": lines("TRY_LOST", 5)}
    made.add(message(SURVEY, "H-redriven"), **redriven, reports=(FIRST, CORRECTION))
    made.add(message(SURVEY, "H-late", notice=True), reports=(LATE,))
    parked = dead | {"code": "DISCARDED", "reports": (PARKED,)}
    made.add(message(WARD, "W-parked", fate="FORM_NOT_REGISTERED"), **parked)
    made.commands.append(Command("discard", WARD, "W-parked", 0))
    for name in ("L-1", "L-2", "L-3"):
        made.add(message(LEDGER, name))
    made.add(message(NUMBERED, "S-1", number=1))
    invalid = {"status": "DEAD", "code": "INVALID_PAYLOAD", "generation": 2, "tries": 2, "tries_before": 1}
    sent = message(NUMBERED, "S-2", number=2, fate="INVALID_PAYLOAD", data={"nothing": 1})
    made.add(sent, **invalid, lines=lines("INVALID_PAYLOAD", 2), reports=(WITHDRAWN, AGAIN))
    made.add(message(NUMBERED, "S-3", number=3))
    made.add(message(NUMBERED, "S-0", number=0), outcome="obsolete")
    return made


def said(evidence: Evidence) -> set[tuple[str, str]]:
    return {(finding.rule, finding.key) for finding in judge(evidence)}


def test_a_good_run_is_proved() -> None:
    assert judge(a_good_run().evidence()) == []


Change = Callable[[Made], Any]


def drop(made: Made, key: Key) -> None:
    del made.rows[key]


def swap(made: Made, one: Key, other: Key, *fields: str) -> None:
    first, second = made.rows[one], made.rows[other]
    made.change(one, **{name: getattr(second, name) for name in fields})
    made.change(other, **{name: getattr(first, name) for name in fields})


def twice(made: Made, key: Key) -> None:
    made.change(key, places=dict.fromkeys(BUNDLE, (2, 2)))


def bundled(made: Made, key: Key) -> None:
    made.change(key, places=dict.fromkeys(BUNDLE, (1, 2)))


def wrong_answer(made: Made, key: Key) -> None:
    made.heard[key].wrong.append("was answered with 500")


def new_twice(made: Made, key: Key) -> None:
    made.heard[key].created = 2


def never_sent(made: Made, key: Key) -> None:
    del made.sent[key]
    del made.heard[key]


def unheard(made: Made, key: str) -> None:
    made.seen[:] = [seen for seen in made.seen if seen.key != key or seen.status >= 300]


def in_other_words(made: Made, key: str) -> None:
    first = next(seen for seen in made.seen if seen.key == key)
    made.seen.append(replace(first, body=first.body | {"reason": "otherwise"}))


def of_another(made: Made, key: str) -> None:
    made.seen[:] = [
        replace(seen, body=seen.body | {"srvyDrawupNo": "H-1"}) if seen.key == key else seen for seen in made.seen
    ]


H1, H2, H3, DEAD = (SURVEY, "H-1"), (SURVEY, "H-2"), (SURVEY, "H-3"), (SURVEY, "H-dead")
REDRIVEN, TOO_LATE, WARDED = (SURVEY, "H-redriven"), (SURVEY, "H-late"), (WARD, "W-parked")
L1, L2, S1, S2, S3, S0 = (LEDGER, "L-1"), (LEDGER, "L-2"), *((NUMBERED, f"S-{n}") for n in (1, 2, 3, 0))

MUTATIONS: dict[str, tuple[Change, str, str]] = {
    "an answer that is wrong": (lambda m: wrong_answer(m, H1), "answers", "hospital/H-1"),
    "a message that was called new twice": (lambda m: new_twice(m, H1), "answers", "hospital/H-1"),
    "an acknowledged message that is not stored": (lambda m: drop(m, H1), "stored", "hospital/H-1"),
    "a stored message that nobody sent": (lambda m: never_sent(m, H1), "stored", "hospital/H-1"),
    "other content": (lambda m: m.change(H1, data={"srvyDrawupNo": "H-2"}), "stored", "hospital/H-1"),
    "a lost payload": (lambda m: m.change(H1, data=None), "stored", "hospital/H-1"),
    "another subject": (lambda m: m.change(H1, subject="other"), "stored", "hospital/H-1"),
    "an open row": (lambda m: m.change(H1, status="FAILED", closed_at=None), "ended", "hospital/H-1"),
    "a row that was never tried": (
        lambda m: m.change(H1, status="RECEIVED", closed_at=None, tries=0),
        "ended",
        "hospital/H-1",
    ),
    "a parked row": (lambda m: m.change(WARDED, parked=True), "ended", "ward/W-parked"),
    "a held row": (lambda m: m.change(H1, held=True), "ended", "hospital/H-1"),
    "a death without a cause": (lambda m: m.change(DEAD, code="GROUP_NOT_FOUND"), "fates", "hospital/H-dead"),
    "a death of faults with tries left": (
        lambda m: m.change(DEAD, code="SYSTEM_ERROR", tries=4, lines=lines("SYSTEM_ERROR", 4)),
        "fates",
        "hospital/H-dead",
    ),
    "a success that cannot be": (lambda m: m.change(S2, status="COMPLETED"), "fates", "seq-producer/S-2"),
    "a discard that nobody asked for": (lambda m: m.commands.clear(), "fates", "ward/W-parked"),
    "no bundle": (lambda m: m.change(H1, places={}), "bundles", "hospital/H-1"),
    "half a bundle": (
        lambda m: m.change(H1, places=dict.fromkeys(BUNDLE[:3], (1, 1))),
        "bundles",
        "hospital/H-1",
    ),
    "two bundles": (lambda m: twice(m, H2), "bundles", "hospital/H-2"),
    "a bundle of a dead message": (lambda m: bundled(m, DEAD), "bundles", "hospital/H-dead"),
    "a counter that moved too far": (lambda m: m.moved.update({"ledger:s": 4}), "counters", "ledger:s"),
    "a counter that did not move": (lambda m: m.moved.update({"ledger:s": 2}), "counters", "ledger:s"),
    "two moves to one value": (lambda m: m.change(L2, outcome={"value": 1}), "counters", "ledger:s"),
    "too many tries": (
        lambda m: m.change(DEAD, tries=6, lines=lines("FORM_NOT_REGISTERED", 6)),
        "tries",
        "hospital/H-dead",
    ),
    "a try without a line": (
        lambda m: m.change(DEAD, lines=lines("FORM_NOT_REGISTERED", 4)),
        "tries",
        "hospital/H-dead",
    ),
    "a line without a try": (lambda m: m.change(H1, lines=lines("TRY_LOST", 1)), "tries", "hospital/H-1"),
    "a death that is not reported": (lambda m: m.change(DEAD, reports=()), "owed", "hospital/H-dead"),
    "a report that is still owed": (
        lambda m: m.change(DEAD, reports=(replace(DEATH, state="OWED"),)),
        "owed",
        "hospital/H-dead",
    ),
    "a report that was given up": (
        lambda m: m.change(DEAD, reports=(replace(DEATH, state="GIVEN_UP"),)),
        "owed",
        "hospital/H-dead",
    ),
    "a death reported twice": (lambda m: m.change(DEAD, reports=(DEATH, DEATH)), "owed", "hospital/H-dead"),
    "a report of another code": (
        lambda m: m.change(DEAD, reports=(replace(DEATH, code="GROUP_NOT_FOUND"),)),
        "owed",
        "hospital/H-dead",
    ),
    "no correction": (lambda m: m.change(REDRIVEN, reports=(FIRST,)), "owed", "hospital/H-redriven"),
    "a correction of nothing": (lambda m: m.change(H1, reports=(CORRECTION,)), "owed", "hospital/H-1"),
    "no notice of what was too late": (lambda m: m.change(TOO_LATE, reports=()), "owed", "hospital/H-late"),
    "a notice of what was in time": (lambda m: m.change(H1, reports=(LATE,)), "owed", "hospital/H-1"),
    "a report that upstream never took": (lambda m: unheard(m, DEATH.workflow_id), "told", DEATH.workflow_id),
    "a report that nobody owed": (lambda m: m.tell(replace(DEATH, workflow_id="x"), "H-dead"), "told", "x"),
    "a report in other words": (lambda m: in_other_words(m, DEATH.workflow_id), "told", DEATH.workflow_id),
    "a report about another message": (lambda m: of_another(m, DEATH.workflow_id), "told", DEATH.workflow_id),
    "a call before it was counted": (lambda m: m.tell(DEATH, "H-dead", 503), "told", DEATH.workflow_id),
    "a withdrawn report that was heard": (lambda m: m.tell(WITHDRAWN, "S-2", 503), "told", WITHDRAWN.workflow_id),
    "surveys out of turn": (lambda m: swap(m, H1, H2, "places"), "order", "hospital/H-1"),
    "surveys that closed out of turn": (lambda m: swap(m, H1, H2, "closed_at"), "order", "hospital/H-1"),
    "counts out of turn": (lambda m: swap(m, L1, L2, "outcome"), "order", "ledger/L-1"),
    "numbers by arrival out of turn": (lambda m: swap(m, H1, H2, "row"), "order", "hospital/H-1"),
    "a sequence out of turn": (lambda m: swap(m, S1, S3, "outcome"), "order", "seq-producer/S-1"),
    "a number that was skipped": (
        lambda m: m.change(S3, outcome="obsolete"),
        "order",
        "seq-producer/S-3",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_wrong_is_said(name: str) -> None:
    change, rule, key = MUTATIONS[name]
    made = a_good_run()
    change(made)
    assert (rule, key) in said(made.evidence())


def test_a_bundle_of_no_message_is_said() -> None:
    assert said(a_good_run().evidence(strays=["hospital/H-9"])) == {("bundles", "hospital/H-9")}


def test_an_execution_that_outlives_its_row_is_said() -> None:
    assert said(a_good_run().evidence(running=["inbox/hospital/H-1"])) == {("executions", "inbox/hospital/H-1")}


def test_a_process_of_the_inbox_that_ends_by_itself_is_said() -> None:
    crashed = ["worker 1 ended by itself (1); its log: w.log"]
    assert said(a_good_run().evidence(crashed=crashed)) == {("processes", "worker 1")}


@pytest.mark.parametrize(("died", "wrong"), [(10, False), (11, True)])
def test_a_run_in_which_many_die_of_faults_is_no_proof(died: int, *, wrong: bool) -> None:
    """Or an inbox that completes nothing would be proved."""
    made = a_good_run()
    for number in range(died):
        report = Report("DEAD", "SENT", "TRY_LOST", f"inbox-report/hospital/H-{number}-lost/1", 1)
        lost = {"status": "DEAD", "code": "TRY_LOST", "tries": 5, "lines": lines("TRY_LOST", 5), "reports": (report,)}
        made.add(message(SURVEY, f"H-{number}-lost"), **lost)
    assert ("fates" in {finding.rule for finding in judge(made.evidence())}) is wrong


def test_every_rule_has_been_seen_to_fail() -> None:
    assert {rule for _, rule, _ in MUTATIONS.values()} | {"executions", "processes"} == set(RULES)


# What may overtake


def test_two_that_were_under_way_at_once_may_be_applied_in_either_order() -> None:
    made = a_good_run()
    made.heard[H2].sent_at = made.heard[H1].sent_at
    swap(made, H1, H2, "places", "closed_at")
    assert judge(made.evidence()) == []


def test_one_that_was_dead_and_redriven_may_come_late_but_no_other_may_pass_it_by() -> None:
    made = a_good_run()
    swap(made, REDRIVEN, TOO_LATE, "places", "closed_at")
    assert judge(made.evidence()) == []
    swap(made, H3, REDRIVEN, "places", "closed_at")
    assert ("order", "hospital/H-3") in said(made.evidence())


def test_one_that_is_parked_keeps_its_place_unless_it_was_released() -> None:
    made = a_good_run()
    parked = replace(FIRST, workflow_id="inbox-report/ward/W-1/1")
    corrected = replace(CORRECTION, workflow_id="inbox-report/ward/W-1/2")
    again = {"generation": 2, "tries": 6, "tries_before": 5, "lines": lines("TRY_LOST", 5)}
    first = made.add(message(WARD, "W-1"), **again, reports=(parked, corrected))
    second = made.add(message(WARD, "W-2"))
    assert judge(made.evidence()) == []
    swap(made, first, second, "places", "closed_at")
    assert said(made.evidence()) == {("order", "ward/W-1")}
    made.commands.append(Command("release", WARD, "W-1", 3))
    assert judge(made.evidence()) == []


def test_a_number_below_the_start_is_obsolete_and_one_above_it_is_not() -> None:
    made = Made()
    made.add(message(NUMBERED, "S-5", number=5))
    made.add(message(NUMBERED, "S-4", number=4), outcome="obsolete")
    made.add(message(NUMBERED, "S-6", number=6), outcome="obsolete")
    assert said(made.evidence()) == {("order", "seq-producer/S-6")}
    made.heard[NUMBERED, "S-6"].sent_at = made.heard[NUMBERED, "S-5"].sent_at
    assert said(made.evidence()) == {("order", "seq-producer/S-6")}
