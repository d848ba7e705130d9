"""docs/handlers.md, done as it stands there: its files are written, installed and run, its messages sent."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.dev.logins import logins
from tests.support.processes import ROOT, answering, environment, process
from tests.support.stack import Stack
from tests.support.waiting import eventually

TEXT = (ROOT / "docs/handlers.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(stock/[\w./]+)`[^\n]*\n\n```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
EVENTS = [json.loads(body) for body in re.findall(r"-d '(\{.*?\})'\n", TEXT, re.DOTALL)]
TOKEN = re.findall(r"Bearer ([\w-]+)", TEXT)[0]
ADDED = re.findall(r'run_sql "(INSERT [^"]+)"', TEXT)


async def run(*line: str, **variables: str) -> None:
    """Run a command of the test's own to its end."""
    running = await asyncio.create_subprocess_exec(
        *line, env=os.environ | variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await running.communicate()
    assert running.returncode == 0, said.decode()


@pytest.fixture
async def installed(stack: Stack, tmp_path: Path) -> Path:
    """Write the document's package, install it, and give the database its tables; return where it was installed."""
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    target = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation")
    await run(*pip, "--disable-pip-version-check", "--target", str(target), str(tmp_path / "stock"))
    await stack.sql(FILES["stock/stock.sql"])
    return target


@pytest.fixture
async def http(stack: Stack, installed: Path, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Run ingest and a worker with the package, each with its own rights; a client with the document's token."""
    urls = logins(stack.url, tmp_path)
    config = {"INBOX_CONFIG": str(tmp_path / "stock/stock.toml"), "PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}
    settings = environment(stack, tmp_path, **config)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/cloudevents+json"}
    async with (
        process(settings | {"DATABASE_URL": urls["ingest"]}, "serve"),
        process(settings | {"DATABASE_URL": urls["worker"]}, "worker", log=tmp_path / "worker.log"),
        httpx.AsyncClient(base_url=f"http://{settings['INBOX_LISTEN']}", headers=headers, trust_env=False) as client,
    ):
        await answering(client)
        yield client
    assert "has no handler here" not in (tmp_path / "worker.log").read_text()


def test_the_document_has_a_whole_package_in_under_thirty_lines() -> None:
    assert set(FILES) == {
        "stock/stock_handlers/__init__.py",
        "stock/pyproject.toml",
        "stock/stock.sql",
        "stock/stock.toml",
        "stock/test_stock.py",
    }
    assert FILES["stock/stock_handlers/__init__.py"].count("\n") < 30
    assert len(EVENTS) == len(ADDED) == 1


async def test_the_document_does_what_it_says(stack: Stack, http: httpx.AsyncClient) -> None:
    (event,) = EVENTS
    path = f"/messages/warehouse/{event['id']}"

    async def record() -> Any:
        return (await http.get(path)).json()

    assert (await http.post("/messages", json=event)).status_code == 202
    failed = await eventually(record, lambda found: found["tries"] >= 2 and found["status"] == "FAILED")
    assert failed["lastCode"] == "ITEM_UNKNOWN"
    assert '"lastCode":"ITEM_UNKNOWN"' in TEXT
    handle = stack.temporal.get_workflow_handle(failed["workflowId"])
    metadata = await handle.query("__temporal_workflow_metadata")
    hint = re.findall(r'codes = \{"ITEM_UNKNOWN": "([^"]+)"\}', TEXT)[0]
    assert f"What helps: {hint}." in metadata.current_details

    await stack.sql(ADDED[0])
    done = await eventually(record, lambda found: found["status"] == "COMPLETED")
    assert done["outcome"] == {"quantity": 7}
    assert done["tries"] >= 3

    again = await asyncio.gather(*(http.post("/messages", json=event) for _ in range(5)))
    assert {answer.status_code for answer in again} == {200}
    assert {answer.json()["duplicate"] for answer in again} == {True}
    assert again[0].json()["outcome"] == {"quantity": 7}
    assert await stack.sql("SELECT * FROM stock.item") == [{"sku": "bolt-8", "quantity": 7}]


async def test_the_documents_own_test_runs(stack: Stack, installed: Path, tmp_path: Path) -> None:
    path = f"{installed}{os.pathsep}{ROOT}"
    test = str(tmp_path / "stock/test_stock.py")
    await run(
        sys.executable, "-m", "pytest", "-q", test, "--rootdir", str(tmp_path), DATABASE_URL=stack.url, PYTHONPATH=path
    )
    assert await stack.sql("SELECT * FROM stock.item") == []
