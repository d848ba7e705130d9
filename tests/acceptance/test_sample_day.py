"""The sample day through the real command (spec section 15): `run` with ONCE=1, and what it leaves in the data."""

# ruff: noqa: S603 - what is started is ours

import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from deploy.dev.postgres import Postgres
from deploy.dev.temporal import Temporal
from tests.acceptance.client import SURVEY_TABLES, query
from tests.acceptance.launcher import OWN, ROOT, STOP_LIMIT, Launcher, Python, copy_of_the_repository
from tests.support.waiting import eventually

DAY_LIMIT = 240.0  # seconds: the machine may be busy with other tests
SAMPLE = [json.loads(line) for line in (ROOT / "deploy/dev/sample-day.jsonl").read_text().splitlines()]
EXPECTED = {  # of each stored message, by ID
    line["send"]["srvyDrawupNo"]: line["expect"]
    for line in SAMPLE
    if line["expect"]["result"] == "Y" and not line["expect"]["duplicate"]
}


@dataclass
class Day:
    """One run to its end."""

    data: Path
    exit_code: int
    said: str
    summary: dict[str, Any]


def run(folder: Path, data: Path, python: Python = OWN) -> Day:
    summary = folder / "summary of the day.json"
    summary.unlink(missing_ok=True)
    with Launcher(folder, "run", data=data, python=python, ONCE="1", SUMMARY=str(summary)) as launcher:
        code = launcher.ended(DAY_LIMIT)
        launcher.nothing_left()
        assert summary.exists(), launcher.said
        return Day(data, code, launcher.said, json.loads(summary.read_text()))


def counts(day: Day) -> dict[str, Any]:
    return {name: day.summary[name] for name in ("completed", "dead", "duplicates", "refused", "mismatches")}


@dataclass(frozen=True)
class Left:
    """What a run left in its data."""

    messages: dict[str, dict[str, Any]]
    bundles: dict[str, dict[str, int]]  # by table, rows by message ID
    reports: list[tuple[str, str]]
    executions: dict[str, list[tuple[str, str]]]  # by workflow ID: run, status


async def look(data: Path, expected: int) -> Left:
    """Open the data as the next start would, without the stack; Temporal may list the last ends a moment late."""
    postgres, temporal = Postgres(data / "postgres"), Temporal(data)
    try:
        postgres.start()
        temporal.start()
        client = await TemporalClient.connect(temporal.address)

        async def executions() -> dict[str, list[tuple[str, str]]]:
            found: dict[str, list[tuple[str, str]]] = {}
            async for run in client.list_workflows():
                found.setdefault(run.id, []).append((run.run_id, run.status.name if run.status else ""))
            return found

        def over(found: dict[str, list[tuple[str, str]]]) -> bool:
            return len(found) == expected and all(s != "RUNNING" for runs in found.values() for _, s in runs)

        listed = await eventually(executions, over)
        messages = query(postgres.url, "SELECT * FROM inbox.message")
        bundles = {
            table: {
                row["message_id"]: row["n"]
                for row in query(postgres.url, f"SELECT message_id, count(*) AS n FROM survey.{table} GROUP BY 1")
            }
            for table in SURVEY_TABLES
        }
        reports = query(postgres.url, "SELECT kind, state FROM inbox.report ORDER BY kind, state")
        return Left(
            {row["message_id"]: row for row in messages},
            bundles,
            [(row["kind"], row["state"]) for row in reports],
            listed,
        )
    finally:
        temporal.stop()
        postgres.stop()


NOTICES = sum(expect["notice"] is not None for expect in EXPECTED.values())
EXECUTIONS = len(EXPECTED) + NOTICES  # a workflow each message, and one each notice


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this module, with a space in its path."""
    return tmp_path_factory.mktemp("sample day ")


@pytest.fixture(scope="module")
def first(folder: Path) -> Day:
    """The day on a fresh data folder."""
    return run(folder, folder / "its data")


@pytest.fixture(scope="module")
async def left(first: Day) -> Left:
    """What the first run left."""
    return await look(first.data, EXECUTIONS)


@pytest.fixture(scope="module")
def second(first: Day, left: Left, folder: Path) -> Day:
    """The same day on the same data."""
    return run(folder, first.data)


def test_the_day_ends_as_the_sample_says_with_exit_code_0(first: Day) -> None:
    assert first.exit_code == 0, first.said
    assert counts(first) == {"completed": 99, "dead": 5, "duplicates": 4, "refused": 3, "mismatches": []}


def test_the_summary_has_exactly_the_keys_of_the_contract(first: Day) -> None:
    shape = {key: sorted(value) if isinstance(value, dict) else type(value) for key, value in first.summary.items()}
    assert shape == {
        "completed": int,
        "dead": int,
        "duplicates": int,
        "refused": int,
        "mismatches": list,
        "seconds": float,
        "intake_ms": ["p50", "p99"],
        "lookups": ["made", "saved"],
    }
    assert 0 < first.summary["intake_ms"]["p50"] <= first.summary["intake_ms"]["p99"]
    assert first.summary["lookups"]["made"] > 0
    assert first.summary["lookups"]["saved"] > first.summary["lookups"]["made"]


def test_the_screen_has_the_table_the_distance_of_tries_and_the_addresses(first: Day) -> None:
    assert "Tries are 2 s apart" in first.said
    for words in ("completed", "dead", "duplicates", "refused", "Temporal UI", "operator"):
        assert words in first.said
    assert "\x1b" not in first.said  # it is no terminal


def test_every_stored_message_has_its_bundle_or_its_dead(left: Left) -> None:
    ended = {name: (row["status"], row["last_code"]) for name, row in left.messages.items() if row["status"] == "DEAD"}
    dead = {name: ("DEAD", expect["code"]) for name, expect in EXPECTED.items() if expect["status"] == "DEAD"}
    assert ended == dead
    assert set(left.messages) == set(EXPECTED)
    completed = dict.fromkeys(set(EXPECTED) - set(dead), 1)
    assert left.bundles == dict.fromkeys(SURVEY_TABLES, completed)


def test_messages_of_one_patient_ended_one_after_the_other_in_the_order_in_which_they_came(
    left: Left, record_property: Callable[[str, object], None]
) -> None:
    patients: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(left.messages.values(), key=lambda row: int(row["id"])):
        patients.setdefault(row["subject"], []).append(row)
    for rows in patients.values():
        ends = [row["closed_at"] for row in rows]
        assert ends == sorted(set(ends))
    most = max(patients.values(), key=len)
    assert len(most) == 7
    free = [max(row["received_at"], before["closed_at"]) for before, row in pairwise(most)]
    took = [(row["closed_at"] - since).total_seconds() for since, row in zip(free, most[1:], strict=True)]
    words = ", ".join(f"{seconds:.2f}" for seconds in took)
    record_property("measured", f"seconds from when it could go to its end, of the 2nd to 7th of one patient: {words}")


def test_every_dead_message_and_every_one_not_sent_was_reported(left: Left) -> None:
    notices = sorted(expect["notice"] for expect in EXPECTED.values() if expect["notice"])
    assert left.reports == [(kind, "SENT") for kind in notices]


def test_one_execution_was_made_for_each_message_and_dead_ones_show_as_failed(left: Left) -> None:
    assert {name: len(runs) for name, runs in left.executions.items() if len(runs) != 1} == {}
    failed = {name for name, ((_, status),) in left.executions.items() if status == "FAILED"}
    assert failed == {row["workflow_id"] for row in left.messages.values() if row["status"] == "DEAD"}


def test_again_on_the_same_data_all_stored_messages_are_duplicates(second: Day) -> None:
    assert second.exit_code == 0, second.said
    duplicates = len(SAMPLE) - 3
    assert counts(second) == {"completed": 0, "dead": 0, "duplicates": duplicates, "refused": 3, "mismatches": []}
    assert second.summary["lookups"] == {"made": 0, "saved": 0}


async def test_again_on_the_same_data_adds_no_bundle_and_no_execution(left: Left, second: Day) -> None:
    after = await look(second.data, EXECUTIONS)
    assert after.bundles == left.bundles
    assert after.executions == left.executions
    assert after.reports == left.reports
    touched = {"duplicates", "delivered_at"}  # spec section 3
    stable = [
        {n: {k: v for k, v in r.items() if k not in touched} for n, r in e.messages.items()} for e in (left, after)
    ]
    assert stable[0] == stable[1]
    assert {row["duplicates"] for row in after.messages.values()} == {1, 3}


def _wrong(line: dict[str, Any], **expect: Any) -> dict[str, Any]:
    return line | {"expect": line["expect"] | expect}


def _one(**expect: Any) -> dict[str, Any]:
    return next(line for line in SAMPLE if expect.items() <= line["expect"].items())


def test_what_does_not_end_as_the_sample_says_is_listed_and_the_exit_code_is_1(folder: Path) -> None:
    right = _one(status="COMPLETED", notice=None)
    others = [line for line in SAMPLE if line["expect"] == right["expect"] and line is not right]
    malformed = next(line for line in SAMPLE if "patno" not in line["send"])
    lines = [
        right,
        _wrong(others[0], status="DEAD", code="FORM_NOT_REGISTERED", notice="DEAD"),
        _wrong(others[1], duplicate=True),
        _wrong(malformed, result="Y", status="COMPLETED"),
        _wrong(_one(notice="NOT_SENT"), notice=None),
    ]
    copy = copy_of_the_repository(folder / "a second clone")
    sample = copy / "deploy/dev/sample-day.jsonl"
    sample.write_text("".join(json.dumps(line) + "\n" for line in lines))
    day = run(folder, folder / "other data", Python(root=copy))
    assert day.exit_code == 1
    found = day.summary["mismatches"]
    named = [sorted({n for n in range(1, 6) if words.startswith(f"line {n} ")}) for words in found]
    assert {n for numbers in named for n in numbers} == {2, 3, 4, 5}
    assert all(len(numbers) == 1 for numbers in named)
    for words in ("ended COMPLETED, expected DEAD", "duplicate is False, expected True", "expected Y", "expected none"):
        assert any(words in line for line in found), words
    for line in found:
        assert line in day.said
    assert {name: day.summary[name] for name in ("completed", "dead", "duplicates", "refused")} == {
        "completed": 4,
        "dead": 0,
        "duplicates": 0,
        "refused": 1,
    }


@contextmanager
def folder_of(user: str) -> Iterator[Path]:
    """Make a folder of another user's: pytest's own are closed to others."""
    made = Path(tempfile.mkdtemp(prefix="an ordinary user "))
    account = pwd.getpwnam(user)
    os.chown(made, account.pw_uid, account.pw_gid)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def python_of(user: str, home: Path) -> Python | None:
    """Find an interpreter that this user can run with our packages, on a copy of the repository."""
    copy = copy_of_the_repository(home / "clone")
    ours = str(Path(sys.prefix, "bin"))
    path = os.pathsep.join([ours, os.environ.get("PATH", os.defpath)])
    packages = os.pathsep.join([str(copy), sysconfig.get_path("purelib")])
    for candidate in filter(None, (sys.executable, shutil.which("python3", path=os.defpath))):
        more = {"HOME": str(home), "PATH": path, "PYTHONPATH": packages}
        try:
            tried = subprocess.run(
                [candidate, "-c", "import deploy.dev.stack, worker, pydantic_core, temporalio.bridge"],
                cwd=copy,
                env=more,
                user=user,
                group="nogroup",
                extra_groups=[],
                capture_output=True,
                timeout=STOP_LIMIT,
                check=False,
            )
        except OSError:  # a parent of it is closed to others
            continue
        if tried.returncode == 0:
            return Python(candidate, copy, user, tuple(more.items()))
    return None


@pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root to become another user; the other tests are an ordinary user's"
)
def test_an_ordinary_user_runs_the_day_as_root_does() -> None:
    user = "nobody"
    with folder_of(user) as home:
        python = python_of(user, home)
        if python is None:
            pytest.skip(f"no Python with these packages can be reached by {user}")
        day = run(home, home / "its data", python)
        assert day.exit_code == 0, day.said
        assert counts(day) == {"completed": 99, "dead": 5, "duplicates": 4, "refused": 3, "mismatches": []}
        owners = {path.stat().st_uid for path in day.data.rglob("*")}
        assert owners == {pwd.getpwnam(user).pw_uid}
