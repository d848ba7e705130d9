"""`inbox serve` and `inbox worker` end with one clear line where they cannot work, and wait for who is away."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import tomlkit
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
    RemoveSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from deploy.dev.logins import logins
from deploy.dev.postgres import Postgres
from deploy.dev.temporal import Temporal
from inbox.checks import check_store
from inbox.errors import SettingsError, StoreUnavailable
from inbox.settings import Settings, load_settings
from inbox.sources import Sources
from inbox.store.migrate import migrate
from inbox.temporal import SEARCH_ATTRIBUTES
from inbox.timeouts import Timeouts
from tests.support.processes import environment, process
from tests.support.stack import Stack, event
from tests.support.waiting import eventually

BOTH = ("serve", "worker")
KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
TEXT = IndexedValueType.INDEXED_VALUE_TYPE_TEXT


@pytest.fixture
def settings(stack: Stack, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that would start."""
    return environment(stack, tmp_path)


async def refusal(settings: dict[str, str], folder: Path, command: str) -> str:
    """Run a command that must end by itself; return the one line that it says why."""
    log = folder / f"{command}.log"
    async with process(settings, command, log=log) as running:
        code = await asyncio.wait_for(running.wait(), 60)
    said = log.read_text()
    lines = [line for line in said.splitlines() if line.startswith("inbox: ")]
    assert (code, len(lines)) == (1, 1), said
    assert said.splitlines()[-1] == lines[0], said
    assert "Traceback" not in said
    assert '"ERROR"' not in said  # nothing ran before it was found
    password = urlsplit(settings["DATABASE_URL"]).password
    assert not password or password not in said
    return lines[0].removeprefix("inbox: ")


async def refusals(settings: dict[str, str], folder: Path) -> set[str]:
    """Return what both commands say."""
    return set(await asyncio.gather(*(refusal(settings, folder, command) for command in BOTH)))


# Settings


def _lock(config: tomlkit.TOMLDocument) -> None:
    config["timeouts"]["lock"] = 6


def _misspelt(config: tomlkit.TOMLDocument) -> None:
    config["sources"]["hospital"]["retry_intervall"] = 5


def _table(config: tomlkit.TOMLDocument) -> None:
    config["dispatsch"] = {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_lock, "timeouts.lock: lock must be shorter than heartbeat"),
        (_misspelt, "sources.hospital.retry_intervall: unknown setting"),
        (_table, "dispatsch: unknown setting"),
    ],
)
async def test_a_file_that_cannot_work(
    settings: dict[str, str], tmp_path: Path, change: Callable[[tomlkit.TOMLDocument], None], said: str
) -> None:
    path = Path(settings["INBOX_CONFIG"])
    config = tomlkit.parse(path.read_text())
    change(config)
    path.write_text(tomlkit.dumps(config))
    key = said.partition(":")[0].rpartition(".")[2]
    (line,) = (n for n, text in enumerate(path.read_text().split("\n"), 1) if re.match(rf"\[?{key}\b", text))
    assert await refusals(settings, tmp_path) == {f"inbox.toml, line {line}: {said}"}


async def test_a_handler_that_cannot_work_ends_the_worker_with_its_line(
    settings: dict[str, str], tmp_path: Path
) -> None:
    path = Path(settings["INBOX_CONFIG"])
    lines = path.read_text().count("\n")
    with path.open("a") as config:
        config.write('\n[handlers.mine]\nhandler = "nowhere:Class"\n')
    said = await refusal(settings, tmp_path, "worker")
    assert said.startswith(f"inbox.toml, line {lines + 2}: handlers.mine: nowhere:Class cannot be imported: ")


async def test_a_type_that_nobody_here_serves_is_a_warning(settings: dict[str, str], tmp_path: Path) -> None:
    path = Path(settings["INBOX_CONFIG"])
    with path.open("a") as config:
        config.write('\n[sources.elsewhere]\ntypes = ["new.type"]\n[sources.away]\ntypes = ["x"]\ntask_queue = "far"\n')
    log = tmp_path / "worker.log"
    queues = json.dumps([settings["INBOX_NAME"]])
    async with process(settings | {"INBOX_TASK_QUEUES": queues}, "worker", log=log) as running:
        await eventually(lambda: _said(log), lambda text: "worker started" in text)
        assert running.returncode is None
    said = log.read_text()
    assert said.count("sources.elsewhere.types: new.type has no handler here") == 1
    assert "sources.away" not in said  # its queue is another worker's
    assert "survey.send has no handler" not in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"INBOX_POOL": "11", "INBOX_ACTIVITIES": "10"},
            "INBOX_POOL must be at least INBOX_ACTIVITIES + INBOX_REPORT_ACTIVITIES + 2",
        ),
        ({"INBOX_LISTN": "127.0.0.1:1"}, "INBOX_LISTN: unknown setting"),
        ({"INBOX_DATABASE_URL": "postgresql://u:p-w@h/d"}, "INBOX_DATABASE_URL: unknown setting"),
        ({"INBOX_LISTEN": "8080"}, "listen: must be host:port"),
        ({"DATABASE_URL": "not:a url"}, "DATABASE_URL: not a libpq URL"),
    ],
)
async def test_an_environment_that_cannot_work(
    settings: dict[str, str], tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    assert await refusals(settings | changes, tmp_path) == {said}


async def test_an_environment_that_cannot_be_read_names_the_setting_and_not_its_value(
    settings: dict[str, str], tmp_path: Path
) -> None:
    (said,) = await refusals(settings | {"INBOX_OPERATOR_TOKENS": "planted-secret"}, tmp_path)
    assert "operator_tokens" in said
    assert "planted" not in said
    Path(settings["INBOX_CONFIG"]).write_bytes(b"# \xff")
    (said,) = await refusals(settings, tmp_path)
    assert said.startswith("INBOX_CONFIG: ")


# Addresses


@pytest.mark.parametrize(("command", "setting"), [("serve", "INBOX_LISTEN"), ("worker", "INBOX_METRICS_LISTEN")])
async def test_an_address_in_use(settings: dict[str, str], tmp_path: Path, command: str, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = await refusal(settings | {setting: address}, tmp_path, command)
    assert said.startswith(f"{setting}: cannot listen on {address}")
    assert "in use" in said


# Postgres


async def test_wrong_credentials_an_unknown_database_and_a_login_without_its_role(
    stack: Stack, settings: dict[str, str], tmp_path: Path
) -> None:
    url = urlsplit(stack.url)
    host = url.netloc.rpartition("@")[2]
    wrong = f"postgresql://postgres:wrong-password@{host}{url.path}"
    assert await refusals(settings | {"DATABASE_URL": wrong}, tmp_path) == {
        "Postgres refuses DATABASE_URL: wrong user or password"
    }
    nobody = f"postgresql://nobody-here:wrong-password@{host}{url.path}"
    assert await refusals(settings | {"DATABASE_URL": nobody}, tmp_path) == {
        "Postgres refuses DATABASE_URL: wrong user or password"
    }
    assert await refusals(settings | {"DATABASE_URL": f"{stack.url}-not"}, tmp_path) == {
        "Postgres refuses DATABASE_URL: there is no such database"
    }
    alone = logins(stack.url, tmp_path)["reader"].replace("dev_reader", "dev_alone")
    password = urlsplit(alone).password
    await stack.sql(f"DROP ROLE IF EXISTS dev_alone; CREATE ROLE dev_alone LOGIN PASSWORD '{password}'")
    assert await refusals(settings | {"DATABASE_URL": alone}, tmp_path) == {
        "this database user may not read the schema: make it a member of its group role"
    }


async def test_a_schema_that_is_missing_too_old_or_newer_than_the_code(
    stack: Stack, settings: dict[str, str], tmp_path: Path
) -> None:
    await stack.sql("UPDATE inbox.alembic_version SET version_num = '0001'")
    (said,) = await refusals(settings, tmp_path)
    assert said.startswith("the schema is at revision 0001 and must be at ")
    assert said.endswith(": run inbox migrate")
    await stack.sql("UPDATE inbox.alembic_version SET version_num = '9999'")
    assert await refusals(settings, tmp_path) == {
        "the schema is at revision 9999, which is newer than this code: deploy newer code"
    }
    await stack.sql("DROP SCHEMA inbox CASCADE")
    assert await refusals(settings, tmp_path) == {"the database has no schema of the inbox: run inbox migrate"}


# Temporal


async def _namespace(temporal: Client, name: str, attributes: dict[str, IndexedValueType.ValueType]) -> None:
    """Make a namespace with these search attributes alone."""
    day = Duration(seconds=24 * 3600)
    await temporal.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=day)
    )
    service = temporal.operator_service

    async def found() -> set[str] | None:
        try:
            listed = await service.list_search_attributes(ListSearchAttributesRequest(namespace=name))
            missing = {key: kind for key, kind in attributes.items() if key not in listed.custom_attributes}
            if missing:
                await service.add_search_attributes(
                    AddSearchAttributesRequest(namespace=name, search_attributes=missing)
                )
        except RPCError:
            return None  # not known everywhere yet
        return set(listed.custom_attributes)

    await eventually(found, lambda names: names is not None and attributes.keys() <= names)


async def test_search_attributes_that_are_missing_or_of_another_type(
    temporal: Client, name: str, settings: dict[str, str], tmp_path: Path, http: httpx.AsyncClient
) -> None:
    good = dict.fromkeys(SEARCH_ATTRIBUTES, KEYWORD)
    await _namespace(temporal, f"{name}-missing", {n: k for n, k in good.items() if n != "InboxCode"})
    assert await refusals(settings | {"TEMPORAL_NAMESPACE": f"{name}-missing"}, tmp_path) == {
        "search attribute InboxCode is missing in Temporal: run inbox migrate"
    }
    await _namespace(temporal, f"{name}-text", good | {"InboxStatus": TEXT})
    there = settings | {"TEMPORAL_NAMESPACE": f"{name}-text"}
    (said,) = await refusals(there, tmp_path)
    assert said == (
        "search attribute InboxStatus is of type Text in Temporal and must be Keyword: remove it"
        " (temporal operator search-attribute remove --name InboxStatus), then run inbox migrate"
    )
    assert await refusal(there, tmp_path, "migrate") == said
    await temporal.operator_service.remove_search_attributes(
        RemoveSearchAttributesRequest(namespace=f"{name}-text", search_attributes=["InboxStatus"])
    )
    async with process(there, "migrate") as running:  # what the line says is enough
        assert await running.wait() == 0
    async with process(there, "serve"), process(there, "worker", log=tmp_path / "fit.log"):
        await eventually(lambda: _said(tmp_path / "fit.log"), lambda text: "worker started" in text)
        await eventually(lambda: ready(http), lambda seen: seen == (200, ""))
    assert await refusals(settings | {"TEMPORAL_NAMESPACE": f"{name}-none"}, tmp_path) == {
        f"Temporal has no namespace {name}-none"
    }


# Away


@pytest.fixture
async def http(settings: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the ingest that runs on these settings."""
    async with httpx.AsyncClient(base_url=f"http://{settings['INBOX_LISTEN']}", trust_env=False) as client:
        yield client


async def ready(http: httpx.AsyncClient) -> tuple[int, str]:
    """Return what /readyz says: status and the problem's kind."""
    try:
        answer = await http.get("/readyz")
    except httpx.HTTPError:
        return 0, ""
    assert answer.headers["Content-Type"] == "application/json" if answer.is_success else "application/problem+json"
    return answer.status_code, answer.json().get("type", "").rpartition(":")[2]


@pytest.fixture
def later(tmp_path: Path) -> Iterator[Postgres]:
    """A server without a schema, that is away."""
    server = Postgres(tmp_path / "postgres")
    server.start()
    server.stop()
    yield server
    server.stop()


async def test_both_wait_for_postgres_and_begin_once_it_is_back(
    settings: dict[str, str], tmp_path: Path, later: Postgres, http: httpx.AsyncClient
) -> None:
    later.start()
    migrate(later.url)
    later.stop()
    log = tmp_path / "worker.log"
    settings["DATABASE_URL"] = later.url
    async with process(settings, "serve") as ingest, process(settings, "worker", log=log) as worker:
        assert await eventually(lambda: ready(http), lambda seen: seen[0] > 0) == (503, "store-unavailable")
        await eventually(lambda: _said(log), lambda said: "waiting: Postgres gives no answer" in said)
        assert (await http.get("/healthz")).status_code == 200
        later.start()
        await eventually(lambda: ready(http), lambda seen: seen == (200, ""))
        await eventually(lambda: _said(log), lambda said: "worker started" in said)
        assert (ingest.returncode, worker.returncode) == (None, None)
    assert (await _said(log)).count("waiting") == 1


async def test_a_worker_that_waits_goes_when_it_is_told_to(
    settings: dict[str, str], tmp_path: Path, later: Postgres
) -> None:
    log = tmp_path / "worker.log"
    async with process(settings | {"DATABASE_URL": later.url}, "worker", log=log) as worker:
        await eventually(lambda: _said(log), lambda said: "waiting" in said)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), 30) == 0


async def test_a_postgres_that_is_stopped_is_away(settings: dict[str, str], later: Postgres) -> None:
    later.start()
    migrate(later.url)
    stopped = Settings(DATABASE_URL=later.url, declared=Sources(timeouts=Timeouts(connect=0.5)))
    await check_store(stopped)
    os.kill(later.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable):
            await check_store(stopped)
    finally:
        os.kill(later.pid, signal.SIGCONT)


async def _said(log: Path) -> str:
    return log.read_text() if log.exists() else ""


async def test_ingest_ends_when_a_postgres_that_was_away_comes_without_its_schema(
    settings: dict[str, str], tmp_path: Path, later: Postgres, http: httpx.AsyncClient
) -> None:
    settings["DATABASE_URL"] = later.url
    log = tmp_path / "serve.log"
    async with process(settings, "serve", log=log) as ingest:
        assert await eventually(lambda: ready(http), lambda seen: seen[0] > 0) == (503, "store-unavailable")
        later.start()
        assert await asyncio.wait_for(ingest.wait(), 60) == 1
    lines = [line for line in log.read_text().splitlines() if line.startswith("inbox: ")]
    assert lines == ["inbox: the database has no schema of the inbox: run inbox migrate"]
    assert "Traceback" not in log.read_text()


async def test_without_temporal_ingest_is_ready_and_says_later_what_is_wrong_with_it(
    settings: dict[str, str], tmp_path: Path, name: str, http: httpx.AsyncClient
) -> None:
    server = Temporal(tmp_path / "temporal", in_memory=True)
    settings |= {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": name}
    log = tmp_path / "worker.log"
    try:
        async with process(settings, "serve") as ingest, process(settings, "worker", log=log) as worker:
            assert await eventually(lambda: ready(http), lambda seen: seen[0] > 0) == (200, "")
            await eventually(lambda: _said(log), lambda said: "Temporal gives no answer" in said)
            server.start()
            assert await asyncio.wait_for(worker.wait(), 60) == 1
            assert (await _said(log)).splitlines()[-1] == f"inbox: Temporal has no namespace {name}"
            await eventually(lambda: ready(http), lambda seen: seen == (503, "search-attributes"))
            counted = event({"counter": "c"}, source="report-producer", type="report.count", id="E-1")
            headers = {
                "Authorization": "Bearer token-of-report-producer",
                "Content-Type": "application/cloudevents+json",
            }
            accepted = await http.post("/messages", content=json.dumps(counted), headers=headers)
            assert accepted.status_code == 202  # intake goes on
            await _namespace(await Client.connect(server.address), name, dict.fromkeys(SEARCH_ATTRIBUTES, KEYWORD))
            await eventually(lambda: ready(http), lambda seen: seen == (200, ""))
            assert ingest.returncode is None
    finally:
        server.stop()


async def test_readyz_says_that_the_schema_was_taken_from_under_a_running_ingest(
    stack: Stack, settings: dict[str, str], http: httpx.AsyncClient
) -> None:
    async with process(settings, "serve"):
        await eventually(lambda: ready(http), lambda seen: seen == (200, ""))
        await stack.sql("UPDATE inbox.alembic_version SET version_num = '9999'")
        assert await ready(http) == (503, "schema")
        assert "deploy newer code" in (await http.get("/readyz")).json()["detail"]
        await stack.sql("DROP SCHEMA inbox CASCADE")
        assert await ready(http) == (503, "schema")


async def test_a_postgres_that_has_no_connection_left_is_away_and_does_not_refuse(stack: Stack, tmp_path: Path) -> None:
    url = logins(stack.url, tmp_path)["reader"].replace("dev_reader", "dev_full")
    await stack.sql("DROP ROLE IF EXISTS dev_full")
    await stack.sql(f"CREATE ROLE dev_full LOGIN CONNECTION LIMIT 0 PASSWORD '{urlsplit(url).password}'")
    with pytest.raises(StoreUnavailable):
        await check_store(Settings(DATABASE_URL=url))


def test_what_kubernetes_puts_into_a_pod_is_no_unknown_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://")
    for known in ("INBOX_SERVICE_HOST", "INBOX_SERVICE_PORT_HTTP", "INBOX_PORT", "INBOX_WEB_PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(known, "tcp://10.0.0.1:8080")
    for asked in ("INBOX_URL", "INBOX_OPERATOR_TOKEN"):  # the command's own
        monkeypatch.setenv(asked, "x")
    load_settings()
    monkeypatch.setenv("INBOX_PORTS", "1")
    with pytest.raises(SettingsError, match="INBOX_PORTS: unknown setting"):
        load_settings()
