"""Keeps services running: starts again what ends, stops all in order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.dev.leftovers import note_children
from deploy.dev.programs import Migrate
from deploy.dev.screen import Screen
from deploy.dev.service import Service, StackError
from deploy.dev.settings import write
from deploy.dev.signals import Signals

_SETTLED = 10.0  # seconds a child must have run for its next restart to be at once
_PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before a restart, by quick ends in a row
_HURRY_LIMIT = 3.0  # seconds between the hurry signal and SIGKILL
_LOOK = 1.0  # seconds between two looks at the children when no signal says that one ended


@dataclass
class _Watched:
    service: Service
    launched: float = 0.0
    quick_ends: int = 0
    due: float | None = None  # when to launch it again; None while it runs


class Supervisor:
    """Runs in the main thread alone: see `Child`."""

    def __init__(self, data: Path, signals: Signals, screen: Screen) -> None:
        """Watch nothing yet."""
        self._data = data
        self._signals = signals
        self._screen = screen
        self._watched: list[_Watched] = []

    def begin(self, service: Service) -> None:
        """Start it, wait until it answers, and watch it from then on. Errors as `Service.start`."""
        watched = _Watched(service)
        # In the list from before its launch, so that `stop` ends it whatever happens meanwhile.
        self._watched.append(watched)
        watched.launched = time.monotonic()
        with self._screen.starting(service.name):
            service.start(self._signals.check)
        self._note()
        took = time.monotonic() - watched.launched
        self._screen.step(service.name, service.address, took)

    def restart(self, service: Service) -> None:
        """Stop a watched one if it runs, start it anew and wait until it answers. Errors as `Service.start`."""
        began = time.monotonic()
        with self._screen.starting(service.name):
            service.stop()
            service.start(self._signals.check)
        self._note()
        self._screen.step(service.name, "started again", time.monotonic() - began)

    def run(self, task: Migrate) -> None:
        """Run something to its end. Errors as `Migrate.run`."""
        began = time.monotonic()
        try:
            with self._screen.starting(task.name):
                task.run(self._signals.check)
        finally:
            task.stop()  # when interrupted
        self._screen.step(task.name, "done", time.monotonic() - began)

    def watch(self, changed: Callable[[], None], until: Callable[[], bool]) -> None:
        """Watch until the condition holds or someone wishes to stop.

        `changed` is called after a child got a new process number.
        """
        while not (until() or self._signals.wishes):
            again = [w for w in self._watched if self._look(w)]
            if again:
                self._note()
                changed()
            self._signals.wait(self._next_look())

    def stop(self, order: Iterable[Iterable[str]]) -> None:
        """Stop everything, group by group; a wish to stop that comes meanwhile hurries."""
        wishes = self._signals.wishes
        for names in order:
            group = [w.service for w in self._watched if w.service.name in set(names)]
            for service in group:
                service.terminate()
            end = time.monotonic() + max((s.stop_limit for s in group), default=0)
            while _alive(group) and self._signals.wishes == wishes and time.monotonic() < end:
                self._signals.wait(0.2)
            for service in _alive(group):
                service.hurry(_HURRY_LIMIT)
        self._watched.clear()
        self._note()

    def _look(self, watched: _Watched) -> bool:
        """Launch it again when that is due; whether it was."""
        service, now = watched.service, time.monotonic()
        if watched.due is None:
            if service.alive():
                return False
            quick = now - watched.launched < _SETTLED
            watched.quick_ends = watched.quick_ends + 1 if quick else 0
            watched.due = now + _PAUSES[min(watched.quick_ends, len(_PAUSES) - 1)]
            self._screen.ended(service)
        if now < watched.due:
            return False
        try:
            service.launch()
        except (OSError, StackError) as error:  # no memory, no room on the disk: it may pass
            watched.quick_ends += 1
            watched.due = now + _PAUSES[min(watched.quick_ends, len(_PAUSES) - 1)]
            self._screen.line(f"{service.name} can't be started again yet: {error}")
            return False
        watched.due, watched.launched = None, now
        self._screen.again(service)
        return True

    def _next_look(self) -> float:
        waits = [w.due - time.monotonic() for w in self._watched if w.due is not None]
        return max(0.0, min([_LOOK, *waits]))

    def _note(self) -> None:
        note_children(self._data, [w.service for w in self._watched])
        kept = {w.service.name: w.service.ports for w in self._watched}
        if kept:
            write(self._data / "ports.json", json.dumps(kept, indent=1) + "\n")


def _alive(group: Iterable[Service]) -> list[Service]:
    return [service for service in group if service.alive()]
