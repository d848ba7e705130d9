"""`python -m deploy.dev run|up`: see spec section 15, and `make help`."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from deploy.dev.launch import launch, leave
from deploy.dev.sample import SOURCE, Sender
from deploy.dev.screen import Screen
from deploy.dev.settings import RETRY_INTERVAL, Options, write
from deploy.dev.signals import Interrupted, Signals
from deploy.dev.stack import Stack

_USAGE = """usage: python -m deploy.dev run|up
run: the local stack with the sample day; ends after the table when ONCE=1
up:  the local stack alone
Environment: DATA, READY, SUMMARY, ONCE, MORE, DATABASE_URL, TEMPORAL_ADDRESS.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 as it should be, 1 refused, failed or mismatches, 2 usage, 3 a service is away.

    130 when it was interrupted before everything answered, or before the sample was through.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given not in (["run"], ["up"]):
        sys.stderr.write(_USAGE)
        return 2
    options = Options.read(os.environ)

    def work(stack: Stack, signals: Signals, screen: Screen) -> int:
        return _work(stack, options, signals, screen, sample=given == ["run"])

    return launch(options, work)


def _work(stack: Stack, options: Options, signals: Signals, screen: Screen, *, sample: bool) -> int:
    screen.line(f"temporal-inbox, local stack; data: {options.data}")
    stack.start()
    whose = " for its own sources" if options.more else ""
    screen.line(f"Tries are {RETRY_INTERVAL} s apart in this local stack{whose} (60 s by default elsewhere).")
    code = _sample(stack, options, signals, screen) if sample else 0
    screen.addresses(stack.addresses(), stack.tokens)
    if sample and options.once:
        return code
    screen.line("\nup until Ctrl-C")
    stack.watch()
    return code


def _sample(stack: Stack, options: Options, signals: Signals, screen: Screen) -> int:
    """Send the sample day and show the table; 1 when something did not end as it should."""
    over = threading.Event()

    def check() -> None:
        if over.is_set():
            raise Interrupted

    # In a thread, since the main one goes on watching the children meanwhile.
    pool = ThreadPoolExecutor(1, thread_name_prefix="sample")
    sender = Sender(stack.ingest.url, stack.hospital.url, stack.tokens[SOURCE], screen.progress, check)
    day = pool.submit(sender.run)
    day.add_done_callback(lambda _: signals.wake())
    stack.watch(until=day.done)
    over.set()
    pool.shutdown(wait=False)
    if not day.done():
        raise Interrupted
    summary = day.result()
    screen.table("The sample day", summary.as_rows())
    screen.mismatches(summary.mismatches)
    if options.summary:
        write(options.summary, json.dumps(summary.as_json(), indent=1) + "\n")
    return 1 if summary.mismatches else 0


if __name__ == "__main__":
    leave(main())
