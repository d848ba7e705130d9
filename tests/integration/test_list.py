"""`inbox list`: which messages of a source are open or parked, and never what they hold (spec section 14)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from inbox.store.reads import PAGE
from tests.support.processes import ROOT, environment
from tests.support.stack import TOKENS, Stack, event, survey

PLANTED = "patient-7350"


@pytest.fixture
def settings(stack: Stack, tmp_path: Path) -> dict[str, str]:
    """The command's environment."""
    return environment(stack, tmp_path)


async def listed(settings: dict[str, str], *options: str) -> tuple[int | None, list[str], str]:
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inbox", "list", *options),
        env=settings,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await run.communicate()
    return run.returncode, said.decode().splitlines(), complained.decode()


async def command(settings: dict[str, str], *line: str) -> tuple[int | None, str]:
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inbox", *line), env=settings, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await run.communicate()
    return run.returncode, said.decode()


async def objects(settings: dict[str, str], *options: str) -> list[dict[str, Any]]:
    code, lines, complained = await listed(settings, *options, "--json")
    assert (code, complained) == (0, "")
    return [json.loads(line) for line in lines]


async def test_open_ones_with_how_far_they_are(stack: Stack, settings: dict[str, str]) -> None:
    stack.configure(retry_interval=600)
    await stack.open()
    first, second = survey(formCd="P-UNKNOWN", patno=PLANTED), survey(patno=PLANTED)
    odd = survey(srvyDrawupNo="a b/c~d", patno="alone", formCd="P-UNKNOWN")
    done = survey()
    async with stack.dispatching(), stack.working():
        for message in (first, second, odd, done):
            await stack.legacy(message)
        await stack.closed(done["srvyDrawupNo"])
        failed = "SELECT 1 FROM (SELECT count(*) AS n FROM inbox.message WHERE status = 'FAILED') o WHERE n = 2"
        await stack.eventually_row(failed)
        await stack.eventually_row("SELECT 1 FROM inbox.message WHERE held_behind IS NOT NULL")
    one, two, three = await objects(settings, "--open", "--source", "hospital")
    key = f"hospital/{first['srvyDrawupNo']}"
    assert (one["key"], one["status"], one["tries"], one["code"]) == (key, "FAILED", 1, "FORM_NOT_REGISTERED")
    assert (one["heldSince"], one["heldBehind"]) == (None, None)
    assert (two["key"], two["status"], two["tries"]) == (f"hospital/{second['srvyDrawupNo']}", "RECEIVED", 0)
    assert (two["heldBehind"], two["heldSince"] is None) == (key, False)
    assert three["key"] == "hospital/a%20b%2Fc%7Ed"
    code, lines, complained = await listed(settings, "--open", "--source", "hospital")
    assert (code, len(lines), complained) == (0, 3, "")
    assert lines[0].startswith(f"{key}  FAILED  tries 1  code FORM_NOT_REGISTERED  received 2")
    assert lines[1].startswith(f"hospital/{second['srvyDrawupNo']}  RECEIVED  tries 0  code -  received 2")
    assert lines[1].endswith(f"behind {key}")
    assert PLANTED not in str([one, two, three, *lines])
    assert "홍길동" not in str([one, two, three, *lines])
    assert await objects(settings, "--parked", "--source", "hospital") == []
    assert await objects(settings, "--open", "--source", "report-producer") == []


async def test_parked_ones(stack: Stack, settings: dict[str, str]) -> None:
    stack.configure(on_dead="park", tries=1)
    await stack.open()
    dead, behind = survey(formCd="P-UNKNOWN"), survey()
    behind["patno"] = dead["patno"]
    async with stack.dispatching(), stack.working():
        await stack.legacy(dead)
        await stack.closed(dead["srvyDrawupNo"])
        await stack.legacy(behind)
    (parked,) = await objects(settings, "--parked", "--source", "hospital")
    assert (parked["key"], parked["status"], parked["tries"]) == (f"hospital/{dead['srvyDrawupNo']}", "DEAD", 1)
    (waiting,) = await objects(settings, "--open", "--source", "hospital")
    assert waiting["key"] == f"hospital/{behind['srvyDrawupNo']}"


async def test_a_long_list_is_whole_and_in_order(stack: Stack, settings: dict[str, str]) -> None:
    await stack.open()
    number = 2 * PAGE + 1
    await stack.sql(
        "INSERT INTO inbox.message (source, message_id, type, payload_sha256, max_tries, workflow_id)"
        " SELECT 'hospital', n::text, CASE WHEN n %% 2 = 0 THEN 'a' ELSE 'b' END, sha256(''), 5, n::text"
        " FROM generate_series(1, %s::int) n",
        number,
    )
    found = [one["key"] for one in await objects(settings, "--open", "--source", "hospital")]
    numbers = [*range(2, number + 1, 2), *range(1, number + 1, 2)]
    assert found == [f"hospital/{n}" for n in numbers]


async def test_what_is_asked_for_has_to_be_said(stack: Stack, settings: dict[str, str]) -> None:
    await stack.open()
    for options in ((), ("--open",), ("--source", "hospital"), ("--open", "--parked", "--source", "hospital")):
        code, lines, _ = await listed(settings, *options)
        assert (code, lines) == (2, []), options
    assert await listed(settings, "--open", "--source", "nobody") == (
        0,
        [],
        "inbox: nobody is no source of these settings\n",
    )


async def test_messages_of_a_source_that_is_gone_are_listed_too(stack: Stack, settings: dict[str, str]) -> None:
    await stack.open()
    counted = event({"counter": "c"}, source="report-producer", type="report.count", id="E-1")
    assert (await stack.post(counted, TOKENS["report-producer"])).status_code == 202
    changed = {**settings, "INBOX_CONFIG": f"{settings['INBOX_CONFIG']}.other"}
    text = Path(settings["INBOX_CONFIG"]).read_text(encoding="utf-8")
    Path(changed["INBOX_CONFIG"]).write_text(text.replace("report-producer", "another"), encoding="utf-8")
    code, lines, complained = await listed(changed, "--open", "--source", "report-producer")
    assert (code, len(lines)) == (0, 1)
    assert "is no source" in complained


async def test_what_is_open_can_be_taken_out_of_the_inbox_without_temporal(
    stack: Stack, settings: dict[str, str], tmp_path: Path
) -> None:
    """docs/rollback.md, "If Temporal does not come back": list, discard without a report, drained."""
    await stack.open()
    messages = [survey(patno=PLANTED) for _ in range(3)]
    for message in messages:
        await stack.legacy(message)
    code, lines, _ = await listed(settings, "--open", "--source", "hospital")
    keys = [line.split()[0] for line in lines]
    assert (code, keys) == (0, [f"hospital/{message['srvyDrawupNo']}" for message in messages])
    stack.configure(report=None)
    quiet = environment(stack, tmp_path)
    for key in keys:
        assert await command(quiet, "discard", key, "--reason", "sent again past the inbox") == (0, f"{key}: DEAD\n")
    assert await command(settings, "drained") == (0, "drained: nothing is open, held, parked or owed\n")
    assert await stack.sql("SELECT 1 FROM inbox.report") == []
    code, _ = await command(quiet, "discard", keys[0], "--reason", "again")
    assert code == 1
    stack.configure(mode="direct")
    await stack.open()
    again = await stack.legacy(messages[0])
    assert (again.json()["duplicate"], again.json()["status"]) == (True, "DEAD")
    another = await stack.legacy(messages[0] | {"srvyDrawupNo": "another"})
    assert another.json()["status"] == "COMPLETED"
