"""What a run tells at its end: the table on the screen, and the same as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from deploy.chaos.evidence import Evidence
from deploy.chaos.judge import OF_FAULTS, RULES, Finding
from deploy.chaos.options import Options
from deploy.chaos.plan import DECK
from deploy.chaos.recovery import Recovery, middle_and_worst


@dataclass(frozen=True)
class Summary:
    """A run in figures; ``quiet_after`` in seconds, None where something never ended."""

    options: Options
    evidence: Evidence
    findings: Sequence[Finding]
    recoveries: Sequence[Recovery]
    ended: Sequence[str]
    quiet_after: float | None
    upstream_faults: int

    @property
    def counts(self) -> dict[str, int]:
        """What was sent, and what became of it."""
        rows, heard = self.evidence.rows.values(), self.evidence.heard.values()
        codes = Counter(row.code for row in rows if row.status == "DEAD")
        return {
            "accepted": len(self.evidence.rows),
            "completed": sum(row.status == "COMPLETED" for row in rows),
            "obsolete": sum(row.obsolete for row in rows),
            "dead": sum(codes.values()),
            "dead_of_faults": sum(codes[code] for code in OF_FAULTS),
            "bundles": sum(row.applied for row in rows),
            "deliveries": sum(h.deliveries for h in heard),
            "unanswered": sum(h.unanswered for h in heard),
            "reused_refused": sum(h.refused for h in heard),
            "tries_lost": sum(line.code == "TRY_LOST" for row in rows for line in row.lines),
            "redriven": sum(row.generation > 1 for row in rows),
            "reports_taken": len(
                {seen.key for seen in self.evidence.seen if seen.status < HTTPStatus.MULTIPLE_CHOICES}
            ),
            "operators_commands": len(self.evidence.commands),
            "upstream_faults": self.upstream_faults,
        }

    def as_rows(self) -> dict[str, str]:
        """For the screen."""
        table = {name.replace("_", " "): str(count) for name, count in self.counts.items()}
        for title, some in self._groups().items():
            if some:
                first, last = (
                    middle_and_worst([one.first for one in some]),
                    middle_and_worst([one.seconds for one in some]),
                )
                table[f"recovery, {title} ({len(some)})"] = (
                    f"first {first[0]:.1f} s, {first[1]:.1f} s; last {last[0]:.1f} s, {last[1]:.1f} s"
                )
        quiet = "never" if self.quiet_after is None else f"{self.quiet_after:.1f} s"
        return table | {"all ended after the last fault": quiet, "findings": str(len(self.findings))}

    def as_json(self) -> dict[str, Any]:
        """For the SUMMARY file; times in seconds."""
        return {
            "seed": self.options.seed,
            "messages": self.options.messages,
            "kills": self.options.kills,
            "counts": self.counts,
            "recovery": {
                title: {
                    "faults": len(some),
                    "first": _figures([one.first for one in some]),
                    "last": _figures([one.seconds for one in some]),
                }
                for title, some in self._groups().items()
                if some
            },
            "dead_of_faults": [
                f"{source}/{name}"
                for (source, name), row in self.evidence.rows.items()
                if row.status == "DEAD" and row.code in OF_FAULTS
            ],
            "faults": [
                {
                    "what": one.done.fault.what,
                    "whom": one.done.fault.whom,
                    "at": one.done.at,
                    "back_after": (one.done.back_at or one.done.at) - one.done.at,
                    "first": one.first,
                    "last": one.seconds,
                    "under_way": one.under_way,
                    "disturbed": one.disturbed,
                    "slowest": one.slowest,
                }
                for one in self.recoveries
            ],
            "quiet_after": self.quiet_after,
            "ended_by_themselves": list(self.ended),
            "rules": sorted(RULES),
            "findings": [{"rule": f.rule, "key": f.key, "text": f.text} for f in self.findings],
        }

    @property
    def unseen(self) -> list[str]:
        """What was done to nobody in this run."""
        return [kind for kind in sorted({f"{what} {whom}" for what, whom, *_ in DECK}) if kind not in self._groups()]

    def _groups(self) -> dict[str, list[Recovery]]:
        groups: dict[str, list[Recovery]] = {"all": list(self.recoveries)}
        groups["undisturbed"] = [one for one in self.recoveries if not one.disturbed]
        for one in self.recoveries:
            whom = one.done.fault.whom.rstrip(" 123")
            groups.setdefault(f"{one.done.fault.what} {whom}", []).append(one)
        return groups


def _figures(times: Sequence[float]) -> dict[str, float]:
    return dict(zip(("median", "worst"), middle_and_worst(times), strict=True))
