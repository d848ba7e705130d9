"""The proof: each rule looks at the evidence, and says of which message it does not hold, and why.

Pure: nothing here asks a server. tests/unit/test_chaos_judge.py shows for each rule that it can fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus

from deploy.chaos import order
from deploy.chaos.evidence import BUNDLE, Evidence, Report, Row
from deploy.chaos.traffic import Message

# What a message may die of in a run beside its own fate: its tries were lost, or the hospital was down.
OF_FAULTS = frozenset({"TRY_LOST", "SYSTEM_ERROR"})
# How many may: five tries a second apart outlast most of what is done, and were seen to end so for 15 in a thousand.
_FEW, _SHARE = 10, 0.05
_DISCARDED = "DISCARDED"
_HEARD = ("SENDING", "SENT", "GIVEN_UP")  # upstream may know
_RESULT = {"DEAD": "N", "NOT_SENT": "Y", "CORRECTION": "Y"}


@dataclass(frozen=True, order=True)
class Finding:
    """A rule that does not hold, of whom, and how."""

    rule: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.key} {self.text}"


Rule = Callable[[Evidence], Iterator[tuple[str, str]]]


def judge(evidence: Evidence) -> list[Finding]:
    """Return all that is wrong; nothing is the proof."""
    return sorted(Finding(name, key, text) for name, rule in RULES.items() for key, text in rule(evidence))


def _name(row: Row | Message) -> str:
    return f"{row.source}/{row.id}"


def _answers(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Tell of each answer that its delivery did not deserve."""
    for (source, name), heard in evidence.heard.items():
        for words in heard.wrong:
            yield f"{source}/{name}", words
        if heard.created > 1:
            yield f"{source}/{name}", f"was called new {heard.created} times"


def _stored(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Find what was answered with a 2xx and is not stored with its content, and what is stored and nobody sent."""
    for key, heard in evidence.heard.items():
        if heard.acknowledged_at is not None and key not in evidence.rows:
            yield "/".join(key), "was answered with a 2xx and is not stored"
    for key, row in evidence.rows.items():
        message = evidence.sent.get(key)
        if message is None or key not in evidence.heard:
            yield _name(row), "is stored and was not sent"
            continue
        if row.data != message.data or row.subject != message.subject or row.number != message.number:
            yield _name(row), "is stored with other content than was sent first"


def _ended(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Find what is open, held or parked: accepted is completed and dead."""
    for row in evidence.rows.values():
        if row.status not in {"COMPLETED", "DEAD"} or row.closed_at is None:
            yield _name(row), f"is still {row.status}, {'held, ' if row.held else ''}{row.tries} tries"
        elif row.held or row.parked:
            yield _name(row), f"is {row.status} and still {'held' if row.held else 'parked'}"


def _fates(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Find what ended otherwise than it had to, and not of what was done to it; nor may that be many."""
    spoilt = sum(row.status == "DEAD" and row.code in OF_FAULTS for row in evidence.rows.values())
    if spoilt > max(_FEW, len(evidence.rows) * _SHARE):
        yield f"{spoilt} of {len(evidence.rows)}", "died of faults: more than faults account for"
    for key, row in evidence.rows.items():
        message = evidence.sent.get(key)
        if message is None:
            continue
        if row.status == "DEAD" and row.code in OF_FAULTS:
            if row.tries - row.tries_before < row.max_tries:  # neither of them ends a message that has tries left
                yield _name(row), f"died of {row.code} with {row.tries - row.tries_before} tries of {row.max_tries}"
            continue
        # What is obsolete is closed unread.
        if row.applied and message.fate not in {"completes", "either"}:
            yield _name(row), f"completed, and had to die of {message.fate}"
        discarded = row.code == _DISCARDED and _commanded(evidence, "discard", key)
        dies_of = "FORM_NOT_REGISTERED" if message.fate == "either" else message.fate
        if row.status == "DEAD" and row.code != dies_of and not discarded:
            yield _name(row), f"died of {row.code}, and had to end by {message.fate}"


def _bundles(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Look for a bundle of each message that was applied, exactly one, and of no other."""
    for stray in evidence.strays:
        yield stray, "has no message"
    for key, row in evidence.rows.items():
        message = evidence.sent.get(key)
        surveys = message is not None and message.type == "survey.send"
        wanted = int(row.applied) if surveys else 0
        for table in BUNDLE:
            found = row.places.get(table, (0, 0))[0]
            if found != wanted:
                yield _name(row), f"is {row.status} and has {found} rows in survey.{table}, and must have {wanted}"


def _counters(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Compare each counter with its messages that were applied: each moved it by one."""
    moved: dict[str, list[int]] = {}
    for key, row in evidence.rows.items():
        message = evidence.sent.get(key)
        if message is not None and message.counter and row.applied:
            moved.setdefault(message.counter, []).append(order.value(row))
    for name in sorted({*moved, *evidence.counters}):
        values, shown = sorted(moved.get(name, [])), evidence.counters.get(name, 0)
        if shown != len(values):
            yield name, f"is {shown}, and {len(values)} of its messages were applied"
        if values != list(range(1, len(values) + 1)):
            yield name, f"was moved to {values}"


def _tries(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Look for tries beyond the limit, and for a line of each that did not complete its message."""
    for row in evidence.rows.values():
        spent = row.tries - row.tries_before
        if spent > row.max_tries:
            yield _name(row), f"had {spent} tries of {row.max_tries}"
        wanted = row.tries - (row.status == "COMPLETED")
        if len(row.lines) != wanted:
            yield _name(row), f"is {row.status} after {row.tries} tries and has {len(row.lines)} lines of failed ones"


def _owed(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Compare the reports of each message with those that it must have, by kind, each of them closed."""
    for key, row in evidence.rows.items():
        message = evidence.sent.get(key)
        for report in row.reports:
            if report.state not in {"SENT", "WITHDRAWN"}:
                yield _name(row), f"its report {report.kind} is {report.state}"
        kinds = Counter(report.kind for report in row.reports)
        deaths = row.generation - 1 + (row.status == "DEAD")
        if kinds["DEAD"] != deaths:
            yield _name(row), f"died {deaths} times and has {kinds['DEAD']} reports of it"
        told = sum(r.kind == "DEAD" and r.state in _HEARD for r in row.reports)
        wanted = int(row.status == "COMPLETED" and told > 0)
        if kinds["CORRECTION"] != wanted:
            yield _name(row), f"is {row.status} after {told} reports that it is dead, and has no CORRECTION of them"
        late = int(row.applied and message is not None and message.notice)
        if kinds["NOT_SENT"] != late:
            yield _name(row), f"has {kinds['NOT_SENT']} notices NOT_SENT, and must have {late}"
        if row.status == "DEAD" and not _says_why(row, row.reports):
            yield _name(row), f"is DEAD of {row.code}, and its last report does not say so"


def _says_why(row: Row, reports: tuple[Report, ...]) -> bool:
    last = reports[-1] if reports else None
    # A parked message that is discarded was reported when it died.
    codes = {row.code, last.code} if last is not None and row.code == _DISCARDED else {row.code}
    return last is not None and (last.kind, last.state) == ("DEAD", "SENT") and last.code in codes


def _told(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Find what upstream did not take, or heard under another key, in other words, or without a report of it."""
    heard: dict[str, list[tuple[str, int]]] = {}
    for seen in evidence.seen:
        heard.setdefault(seen.key, []).append((repr(seen.body), seen.status))
    bodies = {seen.key: seen.body for seen in evidence.seen}
    known: dict[str, Report] = {r.workflow_id: r for row in evidence.rows.values() for r in row.reports}
    owners = {r.workflow_id: row for row in evidence.rows.values() for r in row.reports}
    for key, report in known.items():
        took = [status for _, status in heard.get(key, []) if status < HTTPStatus.MULTIPLE_CHOICES]
        if report.state == "SENT" and not took:
            yield key, f"is {report.kind}, SENT, and upstream never took it"
        if report.state == "WITHDRAWN" and key in heard:
            yield key, "is WITHDRAWN, and upstream heard it"
    for key, times in heard.items():
        if key not in known:
            yield key, "was told upstream, and is no report of the inbox"
            continue
        if len(times) > known[key].tries:  # each call is counted in a commit before it
            yield key, f"was told upstream {len(times)} times, in {known[key].tries} calls that the inbox knows of"
        if len({words for words, _ in times}) > 1:
            yield key, "was told upstream in different words"
        if not _right_words(bodies[key], known[key], owners[key].id):
            yield key, f"is {known[key].kind} of {owners[key].id}, and upstream was told otherwise"


def _right_words(body: object, report: Report, name: str) -> bool:
    if not isinstance(body, dict):
        return False
    about = body.get("srvyDrawupNo", body.get("id"))
    return (about, body.get("result"), body.get("code")) == (name, _RESULT[report.kind], report.code)


def _executions(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Find executions that outlive their rows."""
    for workflow in evidence.running:
        yield workflow, "is still running, and its row is closed"


def _processes(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Name the inbox's processes that ended by themselves: a server that is away is to be waited for."""
    for line in evidence.crashed:
        name, _, how = line.partition(" ended ")
        yield name, f"ended {how}"


def _in_order(evidence: Evidence) -> Iterator[tuple[str, str]]:
    yield from order.faults(evidence)


def _commanded(evidence: Evidence, verb: str, key: tuple[str, str]) -> bool:
    return any(c.verb == verb and (c.source, c.id) == key for c in evidence.commands)


RULES: dict[str, Rule] = {
    "answers": _answers,
    "stored": _stored,
    "ended": _ended,
    "fates": _fates,
    "bundles": _bundles,
    "counters": _counters,
    "tries": _tries,
    "owed": _owed,
    "told": _told,
    "order": _in_order,
    "executions": _executions,
    "processes": _processes,
}
