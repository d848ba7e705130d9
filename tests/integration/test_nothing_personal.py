"""No payload, patient number or secret in a log, span, metric, error text, attempt or Temporal history."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from temporalio.api.enums.v1 import EventType

from inbox.sources import token_hash
from tests.support.otlp import receiver
from tests.support.processes import answering, environment, free_port, process
from tests.support.stack import TOKENS, Stack, event, survey
from tests.support.waiting import eventually

# One for each place where something personal or secret can stand; easy to tell apart when one turns up.
PLANTED = re.compile(r"PLANTED[a-z]*|01077770000|patno-secret")


def planted(**changes: Any) -> dict[str, Any]:
    """Return a message with a marker in every field that says something of a person."""
    return (
        survey(
            patno="PLANTEDpatno",
            recipientNm="PLANTEDname",
            mobile="PLANTEDmobile",
            deptCd="PLANTEDdept",
            note="PLANTEDextra",
        )
        | changes
    )


async def texts_of_temporal(stack: Stack) -> AsyncIterator[tuple[str, str]]:
    """Yield all that Temporal keeps or shows of the test's executions."""
    async for execution in stack.temporal.list_workflows(f"TaskQueue IN ('{stack.name}', '{stack.name}-report')"):
        handle = stack.temporal.get_workflow_handle(execution.id, run_id=execution.run_id)
        yield f"visibility of {execution.id}", str(execution.raw_info)
        yield f"description of {execution.id}", str((await handle.describe()).raw_description)
        history = await handle.fetch_history()
        assert history.events[0].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
        yield f"history of {execution.id}", history.to_json()
        yield f"texts of {execution.id}", str(await handle.query("__temporal_workflow_metadata"))


async def test_markers_planted_everywhere_turn_up_nowhere(stack: Stack, tmp_path: Path) -> None:
    secret = "PLANTEDtoken"
    reporting = {"url": f"{stack.hospital.url}/reports", "token": "PLANTEDreporttoken"}
    stack.configure(tries=2, report=reporting, tokens=[token_hash(secret), token_hash(TOKENS["hospital"])])
    metrics = {part: f"127.0.0.1:{free_port()}" for part in ("ingest", "worker")}
    logs = {name: tmp_path / f"{name}.log" for name in ("ingest", "worker")}
    answers: list[str] = []
    async with receiver() as (otlp, spans):
        settings = environment(
            stack,
            tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=otlp,
            OTEL_BSP_SCHEDULE_DELAY="100",
            INBOX_METRICS_LISTEN=metrics["worker"],
        )
        reveal_token(Path(settings["INBOX_CONFIG"]), "PLANTEDreporttoken")
        async with (
            process(settings | {"INBOX_METRICS_LISTEN": metrics["ingest"]}, "serve", log=logs["ingest"]),
            process(settings, "worker", log=logs["worker"]),
            httpx.AsyncClient(base_url=f"http://{settings['INBOX_LISTEN']}", trust_env=False) as http,
        ):
            await answering(http)

            async def legacy(content: Any, token: str = secret) -> None:
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                answer = await http.post("/legacy/survey-send", content=body, headers=headers)
                answers.append(f"{answer.headers} {answer.text}")

            async def post(cloudevent: Any) -> None:
                headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/cloudevents+json"}
                answer = await http.post("/messages", content=json.dumps(cloudevent).encode(), headers=headers)
                answers.append(f"{answer.headers} {answer.text}")

            # What completes; what dies of each kind of failure: business, Postgres, httpx, pydantic.
            good, late, business, unique, check, invalid, down = (
                planted(),
                planted(sendDt="20200101000000"),
                planted(formCd="P-UNKNOWN"),
                planted(),
                planted(recipientNm="PLANTEDcheck"),
                planted(recipientNm={"PLANTEDkey": "PLANTEDvalue"}),
                planted(),
            )
            await stack.sql("ALTER TABLE survey.recipient ADD CHECK (name <> 'PLANTEDcheck')")
            await stack.sql(
                "INSERT INTO survey.recipient (tenant, source, message_id, edition, patno, guest_id)"
                " VALUES ('', 'hospital', %s, 1, 'p', 'g')",
                unique["srvyDrawupNo"],
            )
            closing = [good, late, business, unique, check, invalid]
            for message in closing:
                await legacy(message)
                await legacy(message)
            for message in closing:
                await stack.closed(message["srvyDrawupNo"])
            await stack.hospital.control(down=True)  # httpx's error text holds the URL, and that the patient's number
            await legacy(down)
            await stack.closed(down["srvyDrawupNo"])
            await stack.hospital.control(down=False)
            for message in (late, business, unique, check, invalid, down):
                await stack.reported(message["srvyDrawupNo"])
            # What the doors refuse.
            for refused in (
                b"PLANTEDnotjson",
                ["PLANTEDlist"],
                planted(srvyDrawupNo=""),
                planted(patno="PLANTEDlong" * 100),
                planted(patno="PLANTED\0"),
                good | {"recipientNm": "PLANTEDother"},
            ):
                await legacy(refused)
            await legacy(good, "PLANTEDwrongtoken")
            await post(event({"PLANTEDdata": 1}, id="E-1", subject="PLANTEDsubject", type="PLANTEDtype"))
            await post(event({"PLANTEDdata": 1}, id="E-2", source="PLANTEDsource"))
            await post(event({"PLANTEDdata": 1}, id="E-3", partitionkey="PLANTEDkey" * 100))
            reads = [f"/messages/hospital/{message['srvyDrawupNo']}" for message in [*closing, down]]
            for path in [*reads, "/messages/hospital/PLANTEDunknown", "/healthz", "/readyz"]:
                answer = await http.get(path, headers={"Authorization": f"Bearer {secret}"})
                answers.append(f"{answer.headers} {answer.text}")
            operator = {"Authorization": f"Bearer {TOKENS['operator']}"}
            answers.append((await http.get("/backlog", headers=operator)).text)
            trace_id = (await stack.row(down["srvyDrawupNo"]))["traceparent"].split("-")[1]
            await eventually(_named(spans, trace_id), lambda names: "sql close report" in names)
            scraped = {part: (await http.get(f"http://{address}/metrics")).text for part, address in metrics.items()}
            kept = [item async for item in texts_of_temporal(stack)]
    kept += [("answer", text) for text in answers]
    kept += [(f"metrics of {part}", text) for part, text in scraped.items()]
    assert "inbox_rejected" in scraped["ingest"]
    assert "temporal_" in scraped["worker"]
    kept += [(f"span {span.name}", str(span)) for span in spans.all]
    kept += [(f"log of {name}", path.read_text()) for name, path in logs.items()]
    kept += [("attempt", str(line)) for line in await stack.sql("SELECT * FROM inbox.attempt")]
    kept += [("report", str(line)) for line in await stack.sql("SELECT * FROM inbox.report")]
    shown = "SELECT last_reason, last_code, outcome, workflow_id FROM inbox.message"
    kept += [("row", str(line)) for line in await stack.sql(shown)]
    found = {(place, marker) for place, text in kept for marker in PLANTED.findall(text)}
    assert found == set()
    # The search can find: what is looked through is there, and the payload itself, where it belongs, holds them.
    places = {place.split(" ")[0] for place, _ in kept}
    assert places == {
        "visibility", "description", "history", "texts", "answer", "metrics", "span", "log", "attempt", "report", "row",
    }  # fmt: skip
    (body,) = await stack.sql("SELECT body FROM inbox.payload p JOIN inbox.message m ON m.id = p.message LIMIT 1")
    assert PLANTED.search(body["body"].decode())
    codes = {line["code"] for line in await stack.sql("SELECT code FROM inbox.attempt")}
    assert codes == {"FORM_NOT_REGISTERED", "SYSTEM_ERROR", "INVALID_PAYLOAD"}
    statuses = {line["reason"] for line in await stack.sql("SELECT reason FROM inbox.attempt WHERE error_class <> ''")}
    assert statuses == {"UniqueViolation 23505", "CheckViolation 23514", "HTTPStatusError 503"}


def reveal_token(config: Path, token: str) -> None:
    """Put the report's token into the file: a settings model masks its own secrets."""
    config.write_text(config.read_text().replace('token = "**********"', f'token = "{token}"'))
    assert token in config.read_text()


def _named(spans: Any, trace_id: str) -> Any:
    async def names() -> set[str]:
        return spans.names(trace_id)

    return names
