"""From a wish for a stack to an exit code: the folder's lock, the signals, the work, and the stop, whatever happens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from deploy.dev.leftovers import DataLock
from deploy.dev.screen import Screen
from deploy.dev.service import StackError
from deploy.dev.settings import Options, write
from deploy.dev.signals import Interrupted, Signals
from deploy.dev.stack import Stack

Work = Callable[[Stack, Signals, Screen], int]


def launch(options: Options, work: Work, each: int = 1) -> int:
    """Do `work` with a stack that it starts itself; `each` as of `Stack`. Returns its exit code.

    1 when something failed, 3 when a service of the caller's is away, 130 when it was interrupted.
    """
    screen = Screen()
    try:
        with Signals() as signals, DataLock(options.data, signals.check) as lock:
            _forget(options)
            stack = Stack(options, signals, screen, each)
            try:
                return work(stack, signals, screen)
            finally:
                lock.stopping()
                screen.line("stopping …")
                stack.stop()
                screen.line("everything is stopped; the data is kept")
    except StackError as error:
        screen.failed(error)
        return error.exit_code
    except Interrupted:
        return 130
    except OSError as error:
        screen.failed(StackError(f"{error.filename or 'a file'}: {error.strerror}"))
        return 1


def leave(code: int) -> NoReturn:
    """End this process with an exit code."""
    with suppress(OSError):  # the terminal may be closed
        sys.stdout.flush()
    # Not sys.exit: all is stopped, and the Temporal client's threads, which still run, were seen
    # to abort the interpreter while it winds up. That would change the exit code.
    os._exit(code)


def _forget(options: Options) -> None:
    """Remove what an earlier stack told, and find out now whether this one can tell it, and read what it is given."""
    if options.more and not options.more.is_file():
        raise StackError(f"MORE: there is no file {options.more}")
    for path in filter(None, (options.ready, options.summary)):
        write(path, "")
        path.unlink()
