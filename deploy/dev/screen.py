"""What the launcher shows: short lines, no escape codes where no terminal is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deploy.dev.service import Service, StackError


class _Console(Console):
    """A console whose terminal may be closed: that must not keep anything from being stopped."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, if anybody is left to read it."""
        with suppress(OSError):
            super().print(*objects, **options)


class Screen:
    """The terminal, or whatever stdout is."""

    def __init__(self) -> None:
        """Write to stdout."""
        self.console = _Console(highlight=False, soft_wrap=True)

    def line(self, text: str) -> None:
        """One line, as it is."""
        self.console.print(escape(text))

    @contextmanager
    def starting(self, name: str) -> Iterator[None]:
        """While something is being started."""
        if not self.console.is_terminal:
            yield
            return
        with self.console.status(f"starting {name} …"):
            yield

    def step(self, name: str, what: str, seconds: float | None = None) -> None:
        """Something is done or answers."""
        took = f"  [dim]{seconds:.1f} s[/]" if seconds is not None else ""
        self.console.print(f"  [green]{escape(name):<10}[/] {escape(what)}{took}")

    def ended(self, service: Service) -> None:
        """Tell that a child ended though nobody asked it to."""
        code = service.child.exit_code if service.child else None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended ({code})"
        self.console.print(f"[yellow]{service.name} {how}; its log: {escape(str(service.log))}[/]")

    def again(self, service: Service) -> None:
        """Tell that a child was started again."""
        self.console.print(f"[yellow]{service.name} was started again (process {service.pid})[/]")

    def failed(self, error: StackError) -> None:
        """Why we give up."""
        if error.tail:
            self.console.print(escape(error.tail), style="dim")
        self.console.print(f"[bold red]{escape(str(error))}[/]")

    def table(self, title: str, rows: Mapping[str, str]) -> None:
        """Names and values."""
        table = Table(title=title, show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(justify="right")
        for name, value in rows.items():
            table.add_row(escape(name), escape(value))
        self.console.print(table)

    def addresses(self, found: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        """Where things are and how to get in: not in a table, so that they can be copied whole."""
        self.console.print("\n[bold]Addresses[/]")
        for name, address in found.items():
            self.console.print(f"  {name:<16} {escape(address)}")
        self.console.print("[bold]Tokens[/] (made for this data folder, for this machine alone)")
        for name, token in tokens.items():
            self.console.print(f"  {name:<16} {escape(token)}")

    def mismatches(self, found: Sequence[str]) -> None:
        """Tell what did not end as the sample says, one line each."""
        for words in found:
            self.console.print(f"[red]mismatch:[/] {escape(words)}")

    def progress(self) -> Progress:
        """Make a progress bar with counts and time."""
        return Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
