"""What the launcher is asked for, and what it makes for its children: tokens and the TOML file."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCES = ("hospital", "report-producer", "seq-producer")
OPERATOR = "operator"
RETRY_INTERVAL = 2  # seconds between tries in the local stack; production's default is 60

# Never from the caller when we start the server ourselves: they belong to another one.
_CLIENT_ONLY = "TEMPORAL_"


@dataclass(frozen=True)
class Options:
    """The environment variables of spec section 15; empty ones count as not set.

    ``more`` is a TOML file of the caller's own, put behind the one that the stack writes: sources and handlers to try.
    """

    data: Path
    ready: Path | None
    summary: Path | None
    more: Path | None
    once: bool
    database_url: str | None
    temporal_address: str | None
    temporal_ui: str | None
    namespace: str

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Options:
        """From the environment. Paths become absolute, since children run elsewhere."""

        def path(name: str) -> Path | None:
            value = environment.get(name)
            return Path(value).expanduser().absolute() if value else None

        return cls(
            data=path("DATA") or Path(".data").absolute(),
            ready=path("READY"),
            summary=path("SUMMARY"),
            more=path("MORE"),
            once=environment.get("ONCE", "").lower() not in ("", "0", "no", "false"),
            database_url=environment.get("DATABASE_URL") or None,
            temporal_address=environment.get("TEMPORAL_ADDRESS") or None,
            temporal_ui=(environment.get("TEMPORAL_UI_URL") or "").rstrip("/") or None,
            namespace=environment.get("TEMPORAL_NAMESPACE") or "default",
        )


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write the file as a whole or not at all, with this mode from its first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    draft.replace(path)


def read_json(path: Path) -> dict[str, object]:
    """Read the JSON object in the file; empty when there is none, or it is not readable as one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def tokens(data: Path) -> dict[str, str]:
    """Return a bearer token for each source and the operator; kept in the data, for the next start."""
    path = data / "tokens.json"
    kept = read_json(path)
    made = {n: str(kept.get(n) or secrets.token_urlsafe(32)) for n in (*SOURCES, OPERATOR)}
    if made != kept:
        write(path, json.dumps(made, indent=1) + "\n", 0o600)
    return made


def hashed(token: str) -> str:
    """How a token is stored: `sha256:` and the digest in hex (spec section 12)."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def toml(made: Mapping[str, str], hospital: str, more: str = "") -> str:
    """Return the INBOX_CONFIG of the local stack: the three sources, the legacy door, the handler, and ``more``."""
    return f"""# Written by the local stack at each start: changes are lost.
[sources.hospital]
types = ["survey.send"]
tokens = ["{hashed(made["hospital"])}"]
order = "arrival"
tries = 5
retry_interval = {RETRY_INTERVAL}
zone = "Asia/Seoul"

[sources.hospital.report]
url = "{hospital}/reports"

[sources.report-producer]
types = ["report.count"]
tokens = ["{hashed(made["report-producer"])}"]
retry_interval = {RETRY_INTERVAL}

[sources.seq-producer]
types = ["report.count"]
tokens = ["{hashed(made["seq-producer"])}"]
order = "sequence"
retry_interval = {RETRY_INTERVAL}

[legacy]
source = "hospital"

[handlers.survey_send]
url = "{hospital}"

{more}"""


def base_environment(options: Options, config: Path, made: Mapping[str, str]) -> dict[str, str]:
    """Return what every child of ours gets, beside the caller's own variables (OTEL_*, INBOX_*)."""
    own_server = options.temporal_address is not None
    kept = {k: v for k, v in os.environ.items() if own_server or not k.startswith(_CLIENT_ONLY)}
    around = [v for v in (kept.get("NO_PROXY") or kept.get("no_proxy"), "127.0.0.1,localhost") if v]
    return {
        **kept,
        # A proxy of the caller's must not stand between our own processes.
        "NO_PROXY": ",".join(around),
        "no_proxy": ",".join(around),
        "PYTHONUNBUFFERED": "1",
        "TEMPORAL_NAMESPACE": options.namespace,
        "INBOX_CONFIG": str(config),
        "INBOX_OPERATOR_TOKENS": json.dumps([hashed(made[OPERATOR])]),
    }
