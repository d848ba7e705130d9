"""What a run is asked for, and the sources that it has: each with an order and a fate for its DEAD of its own."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.dev.settings import hashed

HOSPITAL, LEDGER, WARD = "hospital", "ledger", "ward"
COUNTS, NUMBERED = "report-producer", "seq-producer"
SOURCES = (HOSPITAL, LEDGER, WARD, COUNTS, NUMBERED)
TRIES = 5
RETRY_INTERVAL = 1  # seconds

_SECONDS_A_FAULT = 4.0  # on the mean; a worker's try needs about as long to be found lost
_FAULTS_A_KILL = 20 / 12  # as in the plan's deck
_MESSAGES_A_SECOND = 15.0  # what two cores process beside the faults
_MOST_SEED = 10**9


class WrongOption(Exception):
    """A variable's value can't be used: one line for the screen."""


@dataclass(frozen=True)
class Options:
    """SEED, MESSAGES, KILLS, SUMMARY and DATA; empty ones count as not set."""

    seed: int
    messages: int
    kills: int
    folder: Path
    summary: Path | None

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Options:
        """From the environment. Raises WrongOption."""
        summary = environment.get("SUMMARY")
        return cls(
            seed=_number(environment, "SEED", secrets.randbelow(_MOST_SEED), least=0),
            messages=_number(environment, "MESSAGES", 2_000, least=1),
            kills=_number(environment, "KILLS", 25, least=0),
            folder=Path(environment.get("DATA") or ".data").expanduser().absolute() / "chaos",
            summary=Path(summary).expanduser().absolute() if summary else None,
        )

    @property
    def seconds(self) -> float:
        """How long traffic and faults go on."""
        return max(self.kills * _FAULTS_A_KILL * _SECONDS_A_FAULT, self.messages / _MESSAGES_A_SECOND)


def _number(environment: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise WrongOption(f"{name} must be a whole number from {least}, and is {text!r}")
    return int(text)


def toml(tokens: Mapping[str, str], hospital: str) -> str:
    """Return the INBOX_CONFIG of a run: time-outs and dispatch are the product's own defaults, which are tried here."""
    survey = 'types = ["survey.send"]\nzone = "Asia/Seoul"'
    count = 'types = ["report.count"]'
    sources = {
        HOSPITAL: f'{survey}\norder = "arrival"',
        WARD: f'{survey}\norder = "arrival"\non_dead = "park"',
        LEDGER: f'{count}\norder = "arrival"',
        COUNTS: f'{count}\norder = "none"',
        NUMBERED: f'{count}\norder = "sequence"',
    }
    parts = [
        f"""[sources.{name}]
{lines}
tokens = ["{hashed(tokens[name])}"]
tries = {TRIES}
retry_interval = {RETRY_INTERVAL}

[sources.{name}.report]
url = "{hospital}/reports"
"""
        for name, lines in sources.items()
    ]
    return "\n".join([*parts, f'[legacy]\nsource = "{HOSPITAL}"\n', f'[handlers.survey_send]\nurl = "{hospital}"\n'])
