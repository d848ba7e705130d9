"""`up` tells where everything is, and everything is there (spec section 15)."""

import re
from os import getpgid
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client as TemporalClient

from tests.acceptance.client import SURVEY_TABLES, Client, survey
from tests.acceptance.launcher import Launcher, running, within

SOURCES = {"hospital", "report-producer", "seq-producer"}


def count(message_id: str, **changes: object) -> dict[str, object]:
    event = {"specversion": "1.0", "source": "report-producer", "id": message_id, "type": "report.count"}
    return event | {"data": {"counter": message_id}} | changes


def test_ready_has_exactly_the_keys_of_the_contract(stack: Launcher) -> None:
    ready = stack.ready
    addresses = {"ingest", "temporal", "namespace", "ui", "database", "hospital", "metrics"}
    assert set(ready) == addresses | {"tokens", "operator_token", "pids"}
    assert set(ready["tokens"]) == SOURCES
    assert len({*ready["tokens"].values(), ready["operator_token"]}) == 4
    assert set(ready["pids"]) == {"ingest", "worker", "temporal", "postgres", "hospital"}
    for name in ("ingest", "ui", "hospital", "metrics"):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", ready[name]), name
    assert re.fullmatch(r"127\.0\.0\.1:\d+", ready["temporal"])


def test_ready_names_running_processes_of_this_stack(stack: Launcher) -> None:
    pids = [stack.pid(name) for name in stack.ready["pids"]]
    assert len(set(pids)) == 5
    assert set(pids) <= set(stack.processes())


def test_ready_can_be_read_by_its_owner_alone(stack: Launcher) -> None:
    assert stack.ready_path.stat().st_mode & 0o077 == 0


def test_ingest_ui_hospital_and_metrics_answer_at_their_addresses(client: Client) -> None:
    ready = client.ready
    assert client.get(f"{ready['ingest']}/readyz").status_code == 200
    assert "<html" in client.get(ready["ui"]).text.lower()
    assert set(client.get(f"{ready['hospital']}/_seen").json()) == {"lookups", "guests", "reports"}
    assert "temporal_" in client.get(f"{ready['metrics']}/metrics").text


def test_the_database_url_reads_all_schemas(client: Client) -> None:
    inbox = ("message", "payload", "payload_kept", "attempt", "report", "subject_position")
    tables = [*(f"inbox.{t}" for t in inbox), *(f"survey.{t}" for t in SURVEY_TABLES), "reporting.counter"]
    for table in tables:
        assert client.sql(f"SELECT count(*) AS n FROM {table}")[0]["n"] >= 0


async def test_temporal_serves_the_namespace(stack: Launcher) -> None:
    ready = stack.ready
    temporal = await TemporalClient.connect(ready["temporal"], namespace=ready["namespace"])
    answer = await temporal.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=ready["namespace"]))
    assert MessageToDict(answer.namespace_info)["name"] == ready["namespace"]


def test_a_count_message_moves_its_counter_once(client: Client) -> None:
    first = client.event("report-producer", count("E-1"))
    assert (first.status_code, first.json()["duplicate"]) == (202, False)
    within(30, lambda: client.record("report-producer", "E-1").json()["status"], lambda s: s == "COMPLETED")
    again = client.event("report-producer", count("E-1"))
    assert (again.status_code, again.json()["duplicate"], again.json()["status"]) == (200, True, "COMPLETED")
    assert client.sql("SELECT value FROM reporting.counter WHERE name = 'E-1'") == [{"value": 1}]


def test_a_sources_token_writes_and_reads_its_own_messages_alone(client: Client) -> None:
    assert client.event("report-producer", count("E-2")).status_code == 202
    readers = ("hospital", "seq-producer", "report-producer", "operator")
    answers = [client.record("report-producer", "E-2", name).status_code for name in readers]
    assert answers == [403, 403, 200, 200]
    assert client.event("hospital", count("E-3")).status_code == 403
    assert client.event("operator", count("E-3")).status_code in (401, 403)
    assert client.record("report-producer", "E-3").status_code == 404


def test_the_backlog_is_the_operators(client: Client) -> None:
    url = f"{client.ready['ingest']}/backlog"
    assert client.get(url, "operator").status_code == 200
    assert [client.get(url, name).status_code for name in ("hospital", "report-producer")] == [401, 401]
    assert client.get(url).status_code == 401


def test_every_child_is_in_a_process_group_of_its_own(stack: Launcher) -> None:
    pids = [stack.pid(name) for name in stack.ready["pids"]]
    assert [getpgid(pid) for pid in pids] == pids
    assert all(map(running, pids))


def test_a_message_over_the_old_door_gets_its_bundle(client: Client) -> None:
    client.all_completed([client.send(survey())])


def test_settings_that_are_not_there_are_refused_before_anything_starts(folder: Path) -> None:
    missing = folder / "missing.toml"
    with Launcher(folder, MORE=str(missing)) as launcher:
        assert launcher.ended() == 1
        assert launcher.said.splitlines() == [f"MORE: there is no file {missing}"]


def test_a_second_stack_on_the_same_data_is_refused_in_one_line(stack: Launcher, client: Client, folder: Path) -> None:
    before = stack.ready
    with Launcher(folder, data=stack.data) as second:
        assert second.ended() == 1
        (line,) = second.said.splitlines()
        assert str(stack.data) in line
        assert "in use" in line
        assert str(stack.process.pid) in line
        assert not second.ready_path.exists()
    assert stack.ready == before
    client.all_completed([client.send(survey())])
