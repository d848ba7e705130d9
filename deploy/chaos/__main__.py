"""`python -m deploy.chaos`: one run; exit 0 only with the proof, 1 without it, 2 wrong usage (docs/faults.md)."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from deploy.chaos.judge import RULES, judge
from deploy.chaos.options import Options, WrongOption
from deploy.chaos.recovery import Recovery, recoveries
from deploy.chaos.run import Run
from deploy.chaos.stack import Stack
from deploy.chaos.summary import Summary
from deploy.dev.leftovers import DataLock
from deploy.dev.screen import Screen
from deploy.dev.service import StackError
from deploy.dev.settings import write
from deploy.dev.signals import Interrupted, Signals

_SHOWN = 50  # findings; SUMMARY has all of them


_USAGE = """usage: python -m deploy.chaos
Environment: SEED, MESSAGES, KILLS, SUMMARY, DATA; docs/faults.md says more.
"""


def main() -> int:
    """Run once. Exit codes: 0 the proof holds, 1 it does not or the stack failed, 2 usage, 130 interrupted."""
    if sys.argv[1:]:
        sys.stderr.write(_USAGE)
        return 2
    screen = Screen()
    try:
        options = Options.read(os.environ)
    except WrongOption as error:
        screen.failed(StackError(str(error)))
        return 2
    try:
        with Signals() as signals, DataLock(options.folder, signals.check) as lock:
            stack = Stack(options, signals.check)
            try:
                summary = _run(options, stack, signals, screen)
            finally:
                lock.stopping()
                screen.line("stopping …")
                stack.stop()
            return tell(summary, screen)
    except StackError as error:
        screen.failed(error)
        return 1
    except Interrupted:
        return 130
    except OSError as error:
        screen.failed(StackError(f"{error.filename or 'a file'}: {error.strerror}"))
        return 1


def _run(options: Options, stack: Stack, signals: Signals, screen: Screen) -> Summary:
    screen.line(
        f"temporal-inbox under faults: SEED={options.seed} MESSAGES={options.messages} KILLS={options.kills}, "
        f"{options.seconds:.0f} s of faults once all of it runs; logs and data: {options.folder / 'run'}"
    )
    stack.start()
    run = Run(options, stack, signals, screen.line)
    evidence = run.run()
    found = recoveries(run.keeper.done, evidence.rows.values())
    return Summary(options, evidence, judge(evidence), found, run.keeper.ended, run.quiet_after, run.upstream.faults)


def tell(summary: Summary, screen: Screen) -> int:
    """Show a run's result, and write it where that is wished; the exit code."""
    if summary.options.summary:
        write(summary.options.summary, json.dumps(summary.as_json(), indent=1) + "\n")
    screen.line("\nFaults, and how long until the first and the last of what was under way moved on")
    for one in summary.recoveries:
        screen.line(_recovery(one))
    screen.table(f"Seed {summary.options.seed}", summary.as_rows())
    if summary.unseen:
        screen.line(f"of these no fault came: {', '.join(summary.unseen)}")
    for words in summary.ended:
        screen.line(f"note   {words}")
    for finding in summary.findings[:_SHOWN]:
        screen.line(f"WRONG  {finding}")
    if summary.findings or summary.quiet_after is None:
        screen.line(f"no proof: {len(summary.findings)} findings; to look again: SEED={summary.options.seed}")
        return 1
    screen.line(f"proof: every rule holds ({', '.join(RULES)})")
    return 0


def _recovery(one: Recovery) -> str:
    beside = f"the last of {one.under_way} was {one.slowest}" if one.slowest else "nothing was under way"
    others = " (other faults came meanwhile)" if one.disturbed else ""
    return f"  {one.first:5.1f} s {one.seconds:6.1f} s  {one.done.fault}, {beside}{others}"


if __name__ == "__main__":
    code = main()
    with suppress(OSError):  # the terminal may be closed
        sys.stdout.flush()
    # As the local stack does: whatever threads are left must not change the exit code.
    os._exit(code)
