"""`make rollback`: see docs/rollback.md."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from rich.table import Table

from deploy.dev.launch import launch, leave
from deploy.dev.screen import Screen
from deploy.dev.settings import Options, write
from deploy.dev.signals import Signals
from deploy.dev.stack import Stack
from deploy.rollback.rehearsal import Outcome, Phase, Rehearsal
from deploy.rollback.traffic import NO_ANSWER

_PROCESSES = 2  # of ingest, and of the worker
_EACH = 5  # messages that each sender gets through in each phase, unless EACH says otherwise


def main() -> int:
    """Exit codes: 0 with the proof, 1 without it or when something failed, 2 usage, 130 when it was interrupted."""
    # Servers of the caller's are left alone: Temporal is going to be killed.
    options = replace(Options.read(os.environ), database_url=None, temporal_address=None, temporal_ui=None)
    wished = os.environ.get("EACH") or str(_EACH)
    if not wished.isdecimal():
        sys.stderr.write("EACH is how many messages each sender gets through in each phase\n")
        return 2

    def work(stack: Stack, signals: Signals, screen: Screen) -> int:
        screen.line(f"roll-back rehearsal; data: {options.data}")
        stack.start()
        began = time.monotonic()
        outcome = Rehearsal(stack, signals, screen, int(wished)).run()
        show(screen, outcome)
        if options.summary:
            write(options.summary, json.dumps(_summary(outcome, time.monotonic() - began), indent=1) + "\n")
        return 1 if outcome.faults else 0

    return launch(options, work, _PROCESSES)


def show(screen: Screen, outcome: Outcome) -> None:
    """Print the table of phases, and what is proved or not."""
    table = Table(title="Roll-back, rehearsed", title_justify="left")
    for head in ("phase", "time", "sent", "202", "201", "200", "again", "registered", "open"):
        table.add_column(head, justify="left" if head == "phase" else "right")
    for phase in outcome.phases:
        counted = [phase.sent, *_by_answer(phase).values(), phase.registered, phase.open]
        table.add_row(phase.name, f"{phase.seconds:.1f} s", *map(str, counted))
    screen.console.print("")
    screen.console.print(table)
    for name in ("messages", "registered"):
        was, now = getattr(outcome.before, name), getattr(outcome.after, name)
        screen.line(f"{name}: {was} before, {now} after, {outcome.sent} sent")
    for fault in outcome.faults:
        screen.console.print(f"[red]{fault}[/]")
    if not outcome.faults:
        screen.line("each message is stored once and registered once, each subject's in order; nothing is open")


def _by_answer(phase: Phase) -> dict[str, int]:
    answers = phase.answers
    known = {name: answers.get(int(name), 0) for name in ("202", "201", "200")}
    return known | {"again": answers.get(NO_ANSWER, 0) + answers.get(503, 0)}


def _summary(outcome: Outcome, seconds: float) -> dict[str, Any]:
    phases = [
        {
            "name": phase.name,
            "seconds": round(phase.seconds, 2),
            "sent": phase.sent,
            "answers": _by_answer(phase),
            "registered": phase.registered,
            "open": phase.open,
        }
        for phase in outcome.phases
    ]
    return {
        "phases": phases,
        "drained": outcome.drained,
        "before": asdict(outcome.before),
        "after": asdict(outcome.after),
        "sent": outcome.sent,
        "faults": outcome.faults,
        "seconds": round(seconds, 2),
    }


if __name__ == "__main__":
    leave(main())
