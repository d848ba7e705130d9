"""The points at which a process can be killed, read from the product's code: a new one is in the list by itself.

``before:NAME``, ``after:NAME``: a statement that writes, by its name. It has not been sent yet; or it has written
something, which is committed where it is a transaction of its own, and not yet where it is a part of one.
``committing:OWNER``, ``committed:OWNER``: a transaction of several statements, by the function that opens it. All of it
is done but its commit; or its commit is done, and nothing after it.
``before:`` and ``after:`` with ``start WORKFLOW``, ``answer PATH``, ``activity NAME`` and ``report call``: a start in
Temporal, an acknowledgement, what an activity returns, the call upstream.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import activities
import inbox
import inbox.store
from inbox.sources import LegacySettings
from inbox.starts import ROUTES
from inbox.store.engine import Statement

ROOT = Path(__file__).parents[2]
WRITES = re.compile(
    r"\b(INSERT\s+INTO|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE|CALL)\b|(?<!NO KEY )(?<!FOR )\bUPDATE\s+inbox\."
)
OUR_FUNCTION = re.compile(r"\binbox\.\w+\(")  # what it does is not seen from here
# How code opens a transaction; a context manager that opens one hands it on to its own callers.
OPENERS = ("locked", "transaction")
ALONE = ("run", "one")


def _held(value: Any) -> Iterator[Statement[Any]]:
    if isinstance(value, Statement):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _held(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _held(getattr(value, field.name))


def statements() -> list[Statement[Any]]:
    """Return every statement under inbox/store, whatever holds it, each once."""
    names = [module.name for module in pkgutil.walk_packages(inbox.store.__path__, "inbox.store.")]
    found = {
        id(statement): statement
        for name in names
        if ".migrations" not in name
        for value in vars(importlib.import_module(name)).values()
        for statement in _held(value)
    }
    return list(found.values())


def writing() -> list[Statement[Any]]:
    """Return those that write."""
    return [s for s in statements() if WRITES.search(s.sql) or OUR_FUNCTION.search(s.sql)]


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AsyncFunctionDef | ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}.{node.name}")
        elif isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            yield f"{prefix}.{node.name}", node


def _called(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Return what is called on a database, or by a plain name, within a function."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            function = call.func
            if isinstance(function, ast.Name):
                yield function.id, call
            elif isinstance(function, ast.Attribute) and ast.unparse(function.value).endswith("database"):
                yield function.attr, call


def code() -> dict[str, ast.AsyncFunctionDef | ast.FunctionDef]:
    """Return the product's functions, by their full names; the engine's own are how, and not what."""
    paths = [*ROOT.glob("inbox/**/*.py"), *ROOT.glob("activities/**/*.py"), *ROOT.glob("workflows/**/*.py")]
    paths += [ROOT / "worker.py"]
    return {
        name: node
        for path in paths
        if path.name != "engine.py" and "migrations" not in path.parts
        for name, node in _functions(
            ast.parse(path.read_text(encoding="utf-8")), ".".join(path.relative_to(ROOT).with_suffix("").parts)
        )
    }


def transactions() -> list[str]:
    """Return the functions that open a transaction of several statements, by their full names."""
    functions = code()
    openers = {*OPENERS}
    while True:
        owners = {name for name, node in functions.items() if openers & {called for called, _ in _called(node)}}
        handed = {name for name in owners if "asynccontextmanager" in map(ast.unparse, functions[name].decorator_list)}
        more = {name.rpartition(".")[2] for name in handed} - openers
        if not more:
            return sorted(owners - handed)
        openers |= more


def alone() -> dict[str, list[str]]:
    """Return how statements are sent as a transaction of their own: by expression, with the functions that send it."""
    found: dict[str, list[str]] = {}
    for name, node in code().items():
        for called, call in _called(node):
            if called in ALONE and isinstance(call.func, ast.Attribute):
                found.setdefault(ast.unparse(call.args[0]), []).append(name)
    return found


def activity_names() -> list[str]:
    """Return the activities, as Temporal knows them."""
    found = set()
    for module in pkgutil.iter_modules(activities.__path__, "activities."):
        for owner in vars(importlib.import_module(module.name)).values():
            for method in vars(owner).values() if isinstance(owner, type) else ():
                definition = getattr(method, "__temporal_activity_definition", None)
                if definition:
                    found.add(definition.name)
    return sorted(found)


def doors() -> list[str]:
    """Return the paths of the doors that take messages in."""
    return ["/messages", LegacySettings().path]


def around() -> list[str]:
    """Return what else there is a before and an after of."""
    return [
        *(f"start {route.workflow}" for route in ROUTES),
        *(f"answer {path}" for path in doors()),
        *(f"activity {name}" for name in activity_names()),
        "report call",
    ]


def points() -> list[str]:
    """Return every point."""
    names = sorted(s.name for s in writing()) + around()
    return [f"{when}:{name}" for name in names for when in ("before", "after")] + [
        f"{when}:{owner}" for owner in transactions() for when in ("committing", "committed")
    ]
