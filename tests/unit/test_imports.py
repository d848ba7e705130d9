"""Imports flow one way (design.md, layout): read from the syntax tree of every module, so that nothing has to run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("inbox", "activities", "workflows", "handlers", "deploy")
PURE = {f"inbox.{name}" for name in ("message", "states", "errors", "handler", "lookups", "references")}
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|TRUNCATE)\s", re.IGNORECASE)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PATHS = {
    module_of(path): path
    for path in [ROOT / "worker.py", *(found for package in PACKAGES for found in (ROOT / package).rglob("*.py"))]
}


def imports(tree: ast.AST, module: str, *, typing_too: bool) -> Iterator[str]:
    """Yield the full name of every module that ``tree`` imports, wherever in it the import stands."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING") and not typing_too:
            for other in node.orelse:
                yield from imports(ast.Module([other], []), module, typing_too=typing_too)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: -node.level]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in PATHS else base
        else:
            yield from imports(node, module, typing_too=typing_too)


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


LIGHT = {*sys.stdlib_module_names, "temporalio", "workflows"}
# What a package must not import, the longest name deciding: whatever is above it, or beside it and no concern of its.
FORBIDDEN = {
    "inbox": ("workflows", "activities", "handlers", "deploy", "worker"),
    "inbox.store": (
        *("workflows", "activities", "handlers", "deploy", "worker"),
        *("inbox.ingest", "inbox.dispatch", "inbox.cli"),
    ),
    "activities": ("workflows", "deploy", "worker"),
    "handlers": ("activities", "workflows", "deploy", "worker"),
    "worker": ("deploy",),
    "deploy": (),
    "deploy.chaos": ("inbox", "activities", "workflows", "handlers", "worker"),  # its judge must not share our faults
}


def is_allowed(module: str, name: str) -> bool:
    """Tell whether ``module`` may import ``name``."""
    if within(name, "tests"):
        return False
    if module in PURE:
        return name.partition(".")[0] in {*sys.stdlib_module_names, "pydantic"} or name in PURE
    if within(module, "workflows"):
        return name.partition(".")[0] in LIGHT or name == "inbox.references"
    if within(module, "handlers") and within(name, "inbox"):
        return name == "inbox.handler"
    package = max((package for package in FORBIDDEN if within(module, package)), key=len)
    return not within(name, *FORBIDDEN[package])


def violations(module: str, source: str) -> list[str]:
    """Return what ``module``, holding ``source``, imports and must not."""
    # A type alone may come from below or from a library; one from above would still turn the arrow round.
    pure = module in PURE
    found = imports(ast.parse(source), module, typing_too=not pure)
    return sorted({name for name in found if not is_allowed(module, name)})


def test_every_package_is_looked_at() -> None:
    assert {name.partition(".")[0] for name in PATHS} == {*PACKAGES, "worker"}
    assert PATHS.keys() >= PURE


@pytest.mark.parametrize("module", sorted(PATHS))
def test_a_module_imports_nothing_from_above_it(module: str) -> None:
    assert violations(module, PATHS[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("inbox.message", "import httpx", ["httpx"]),
        ("inbox.states", "from inbox.settings import Settings", ["inbox.settings"]),
        (
            "inbox.handler",
            "def f():\n    from sqlalchemy.ext.asyncio import AsyncConnection",
            ["sqlalchemy.ext.asyncio"],
        ),
        ("inbox.handler", "if TYPE_CHECKING:\n    pass\nelse:\n    import sqlalchemy", ["sqlalchemy"]),
        ("inbox.references", "import temporalio.workflow", ["temporalio.workflow"]),
        ("inbox.dispatch", "from workflows.process_message import ProcessMessage", ["workflows.process_message"]),
        ("inbox.registry", "import handlers.survey_send as first", ["handlers.survey_send"]),
        ("inbox.cli", "import deploy.dev.postgres", ["deploy.dev.postgres"]),
        ("inbox.process", "from worker import run_worker", ["worker"]),
        ("inbox.store.reads", "from inbox import dispatch", ["inbox.dispatch"]),
        ("inbox.store.reads", "from ..ingest import accept", ["inbox.ingest.accept"]),
        ("inbox.store.reads", "if TYPE_CHECKING:\n    from inbox.cli import app", ["inbox.cli"]),
        ("activities.report", "from workflows import policies", ["workflows.policies"]),
        ("workflows.policies", "import inbox.states", ["inbox.states"]),
        ("workflows.policies", "import sqlalchemy", ["sqlalchemy"]),
        ("workflows.policies", "with x():\n    from activities.register import R", ["activities.register"]),
        ("handlers.report_counter", "from inbox.errors import BusinessError", ["inbox.errors"]),
        ("handlers.report_counter", "from inbox import store", ["inbox"]),
        ("deploy.dev.screen", "from tests.support import stack", ["tests.support"]),
        ("worker", "import tests", ["tests"]),
    ],
)
def test_the_check_finds_a_violation(module: str, source: str, found: list[str]) -> None:
    seen = violations(module, source)
    assert seen
    assert all(any(within(name, expected) for expected in found) for name in seen)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("inbox.handler", "if TYPE_CHECKING:\n    from sqlalchemy.ext.asyncio import AsyncConnection"),
        ("inbox.handler", "from inbox import states\nimport dataclasses\nfrom pydantic import BaseModel"),
        ("workflows.policies", "from inbox import references\nfrom datetime import timedelta"),
        ("handlers.report_counter", "from inbox.handler import Lookups\nfrom handlers.survey_send import clients"),
    ],
)
def test_the_check_leaves_in_peace_what_is_right(module: str, source: str) -> None:
    assert violations(module, source) == []


def workflows_in(source: str) -> list[str]:
    """Return the classes of ``source`` that are Temporal workflows."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and any(re.search(r"\bworkflow\.defn\b|^defn\b", ast.unparse(line)) for line in node.decorator_list)
    ]


def sql_in(source: str) -> list[str]:
    """Return the SQL of ``source``: strings that begin with its verbs, and imports of what runs or holds it."""
    tree = ast.parse(source)
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    holders = ("psycopg", "sqlalchemy", "inbox.store.statements", "inbox.store.due", "inbox.store.reads")
    held = [name for name in imports(tree, "worker", typing_too=True) if within(name, *holders)]
    return [text for text in strings if SQL.match(text)] + held


def test_the_composition_root_defines_no_workflow_and_holds_no_sql() -> None:
    source = PATHS["worker"].read_text(encoding="utf-8")
    assert workflows_in(source) == []
    assert sql_in(source) == []


@pytest.mark.parametrize(
    "source",
    ["@workflow.defn\nclass W: ...", "@workflow.defn(name='w')\nclass W: ...", "@defn\nclass W: ..."],
)
def test_a_workflow_in_the_composition_root_would_be_found(source: str) -> None:
    assert workflows_in(source) == ["W"]


@pytest.mark.parametrize(
    "source",
    [
        "run('select 1')",
        "run(f'''\n  UPDATE {table} SET x''')",
        "import psycopg",
        "from inbox.store.due import MESSAGES",
    ],
)
def test_sql_in_the_composition_root_would_be_found(source: str) -> None:
    assert len(sql_in(source)) == 1
