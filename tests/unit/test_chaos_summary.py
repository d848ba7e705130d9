"""What `make chaos` says at its end: 0 only with the proof, and whatever is wrong by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.chaos.__main__ import tell
from deploy.chaos.judge import RULES, Finding
from deploy.chaos.options import Options
from deploy.chaos.plan import KILL, POSTGRES, Fault
from deploy.chaos.recovery import Recovery
from deploy.chaos.summary import Summary
from deploy.dev.screen import Screen
from tests.unit.test_chaos_judge import a_good_run
from tests.unit.test_chaos_recovery import fault

WRONG = Finding("bundles", "hospital/H-1", "is COMPLETED and has 0 rows in survey.task, and must have 1")


def summary(folder: Path, **changes: Any) -> Summary:
    given: dict[str, Any] = {
        "options": Options.read({"SEED": "7", "SUMMARY": str(folder / "summary.json")}),
        "evidence": a_good_run().evidence(),
        "findings": [],
        "recoveries": [
            Recovery(fault(), 1.0, 7.0, 3, True, "hospital/H-1"),
            Recovery(fault(whom=POSTGRES), 2.0, 4.0, 0, False, ""),
        ],
        "ended": [],
        "quiet_after": 2.0,
        "upstream_faults": 5,
    }
    return Summary(**given | changes)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({}, 0, "proof: every rule holds"),
        ({"findings": [WRONG]}, 1, f"WRONG  {WRONG}"),
        ({"findings": [WRONG]}, 1, "SEED=7"),
        ({"quiet_after": None}, 1, "no proof"),
        ({"ended": ["worker 1 ended by itself (1)"]}, 0, "note   worker 1 ended by itself (1)"),
    ],
)
def test_the_exit_code_says_whether_there_is_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], code: int, words: str
) -> None:
    assert tell(summary(tmp_path, **changes), Screen()) == code
    said = capsys.readouterr().out
    assert words in said
    assert ("no proof" in said) == (code == 1)


def test_the_file_has_counts_findings_and_recovery_by_kind(tmp_path: Path) -> None:
    tell(summary(tmp_path, findings=[WRONG]), Screen())
    told = json.loads((tmp_path / "summary.json").read_text())
    assert (told["seed"], told["messages"], told["kills"], told["rules"]) == (7, 2000, 25, sorted(RULES))
    assert told["findings"] == [{"rule": "bundles", "key": "hospital/H-1", "text": WRONG.text}]
    counts = told["counts"]
    assert counts["accepted"] == counts["completed"] + counts["dead"] == 14
    assert counts["bundles"] == counts["completed"] - counts["obsolete"]
    assert told["recovery"] == {
        "all": {"faults": 2, "first": {"median": 1.5, "worst": 2.0}, "last": {"median": 5.5, "worst": 7.0}},
        "undisturbed": {"faults": 1, "first": {"median": 2.0, "worst": 2.0}, "last": {"median": 4.0, "worst": 4.0}},
        "kill -9 worker": {"faults": 1, "first": {"median": 1.0, "worst": 1.0}, "last": {"median": 7.0, "worst": 7.0}},
        "kill -9 Postgres": {
            "faults": 1,
            "first": {"median": 2.0, "worst": 2.0},
            "last": {"median": 4.0, "worst": 4.0},
        },
    }
    assert [(f["what"], f["whom"], f["back_after"]) for f in told["faults"]] == [
        (KILL, "worker 1", 2),
        (KILL, POSTGRES, 2),
    ]


def test_a_fault_is_told_in_one_line() -> None:
    assert str(Fault(3.0, KILL, POSTGRES, 1.25)) == "kill -9 Postgres, 1.2 s"
