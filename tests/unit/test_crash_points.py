"""Every point at which a process can be killed has its crash test; the points are read from the code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from inbox.starts import ROUTES
from inbox.store import direct, due, order, reports, statements
from inbox.store.engine import Statement
from tests.support import points as code
from tests.support.crash_cases import SHARE, cases, is_chosen
from tests.support.crash_doors import COMMANDS, DOORS
from tests.support.crash_workers import ORDERED, REPORTS, WORKERS
from tests.unit.test_docs import section, table

TEXT = (Path(__file__).parents[2] / "docs/faults.md").read_text(encoding="utf-8")
SCENARIOS = {"workers": WORKERS, "reports": REPORTS, "ordered": ORDERED, "doors": DOORS, "commands": COMMANDS}
TOLD = "## Killed at every point"


def reached() -> set[str]:
    return {point for group in SCENARIOS.values() for scenario in group for point in scenario.points}


def test_each_point_of_the_code_has_a_scenario_that_reaches_it() -> None:
    missing = sorted(set(code.points()) - reached())
    assert not missing, f"no crash test kills a process at {missing}: add it to a scenario in tests/support/crash_*.py"


def test_each_scenario_names_points_of_the_code() -> None:
    assert sorted(reached() - set(code.points())) == []


def test_each_group_is_run() -> None:
    for name, group in SCENARIOS.items():
        text = (code.ROOT / f"tests/integration/test_crash_points_{name}.py").read_text(encoding="utf-8")
        assert f"cases({name.upper()})" in text
        assert len(cases(group)) == sum(len(scenario.points) for scenario in group)


def test_names_of_what_writes_tell_statements_apart() -> None:
    assert [name for name, n in Counter(s.name for s in code.writing()).items() if n > 1] == []


def test_a_new_statement_and_a_new_transaction_are_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new = Statement("forget", int, "DELETE FROM inbox.message WHERE id = 1")
    monkeypatch.setattr(order, "NEW", {"a": new}, raising=False)
    (tmp_path / "activities").mkdir()
    (tmp_path / "inbox").mkdir()
    (tmp_path / "worker.py").touch()
    (tmp_path / "inbox/new.py").write_text(
        "class New:\n    async def go(self):\n        async with self._database.transaction() as tx:\n            pass\n"
        "@asynccontextmanager\nasync def held(database):\n    async with database.transaction() as tx:\n        yield\n"
        "async def user():\n    async with held(1):\n        pass\n"
    )
    monkeypatch.setattr(code, "ROOT", tmp_path)
    found = set(code.points())
    assert {"before:forget", "after:forget"} <= found
    assert code.transactions() == ["inbox.new.New.go", "inbox.new.user"]
    assert "committed:inbox.new.user" in found


def test_what_only_reads_or_locks_is_no_point() -> None:
    names = {s.name for s in code.writing()}
    reading = {s.name for s in code.statements() if s not in code.writing()}
    assert {"take fence", "lock message", "read standing", "lock newest"} <= reading
    assert {"claim", "make partitions", "put, order none", "lease report", "begin report"} <= names


def resolved(expression: str) -> list[Statement]:
    """Return what an expression that names a statement stands for."""
    modules = (statements, order, reports, due, direct)
    name, _, rest = expression.partition(".")
    if name in ("queue", "route"):
        return [getattr(route.queue, rest.rpartition(".")[2]) for route in ROUTES]
    for module in (*modules, *(vars(code.inbox.store).get(n) for n in ("reads", "editions"))):
        value = getattr(module, expression.partition("[")[0], None)
        if value is not None:
            return list(value.values()) if isinstance(value, dict) else [value]
    raise AssertionError(f"{expression}: send a statement by its name, so that its crash test is found")


def test_a_statement_that_is_a_transaction_of_its_own_is_sent_from_one_place() -> None:
    """Or its name would stand for two commits, of which the scenario reaches one."""
    code.statements()  # imports every module
    writing = {id(statement) for statement in code.writing()}
    for expression, places in code.alone().items():
        if any(id(statement) in writing for statement in resolved(expression)):
            assert len(set(places)) == 1, (expression, places)


def test_by_default_each_point_that_leaves_something_is_run_and_in_turn_every_other() -> None:
    every = code.points()
    thirds = [{p for p in every if is_chosen(p, str(third))} for third in range(SHARE)]
    assert set.union(*thirds) == set(every)
    assert set.intersection(*thirds) == {p for p in every if p.startswith(("after:", "committed:"))}
    assert all(is_chosen(p, "all") for p in every)


def test_the_document_lists_what_the_code_has() -> None:
    names = sorted(name for row in table(section(TEXT, TOLD)) for name in row[1].split("; "))
    assert names == sorted({point.partition(":")[2] for point in code.points()})
