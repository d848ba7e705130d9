"""The documentation says what the code says: diagrams, tables, links, commands and settings are compared."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from pydantic import BaseModel

from handlers.report_counter import Count
from handlers.survey_send.clients import SurveySendSettings
from handlers.survey_send.payload import SurveySend
from inbox.cli import app
from inbox.ingest.cloudevents import read_event
from inbox.ingest.content import parse_json
from inbox.ingest.http import REFUSALS
from inbox.ingest.legacy import read_survey_send
from inbox.ingest.openapi import PROBLEMS
from inbox.payload import decode
from inbox.settings import Settings
from inbox.sources import DispatchSettings, LegacySettings, ReportSettings, Sources, SourceSettings
from inbox.states import CLOSED, EDGES, REPORT_RESULT, OwnCode, ReportState
from inbox.store import order
from inbox.store.engine import Statement
from inbox.store.statements import CLAIM
from inbox.temporal import SEARCH_ATTRIBUTES
from inbox.timeouts import Timeouts
from inbox.verdict import HINTS
from tests.integration.bad_input import CASES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path for path in ROOT.rglob("*.md") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
DECISIONS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
MIGRATION = (ROOT / "inbox/store/migrations/versions/0001_inbox.py").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(content: str, language: str) -> list[str]:
    return [body for named, body in FENCE.findall(content) if named == language]


def prose(content: str) -> str:
    return FENCE.sub("", content)


def spans(content: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(content))


def commands() -> Iterator[str]:
    """Yield what the documents give a shell: lines of sh blocks, and code spans."""
    for path in DOCUMENTS:
        content = path.read_text(encoding="utf-8")
        for block in blocks(content, "sh"):
            yield from block.splitlines()
        yield from spans(content)


def section(content: str, heading: str) -> str:
    """Return what stands under ``heading``, up to the next heading of its rank or a higher one."""
    rank = len(heading) - len(heading.lstrip("#"))
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{rank}}} |\Z)", content, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {heading!r}"
    return found[1]


def table(content: str) -> list[list[str]]:
    """Return the rows of the tables in ``content``, without their heads."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in content.splitlines() if line[:1] == "|"]
    heads = [number for number, row in enumerate(rows) if set("".join(row)) <= set("-| ")]
    return [row for number, row in enumerate(rows) if number not in heads and number + 1 not in heads]


# States


def drawn(heading: str) -> set[tuple[str, str]]:
    """Return the edges of the state diagram under ``heading``."""
    diagrams = blocks(section(text("docs/state-machine.md"), heading), "mermaid")
    assert len(diagrams) == 1
    first, *lines = diagrams[0].splitlines()
    assert first == "stateDiagram-v2"
    edges = [re.fullmatch(r"\s+(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : [^:;]+)?", line) for line in lines]
    assert all(edges), lines
    return {(edge[1], edge[2]) for edge in edges if edge}


def test_the_diagram_of_a_message_has_every_edge_and_no_other() -> None:
    edges = drawn("## A message")
    assert {edge for edge in edges if "[*]" not in edge} == {(old.value, new.value) for old, new in EDGES}
    assert {new for old, new in edges if old == "[*]"} == {"RECEIVED", "COMPLETED"}
    assert {old for old, new in edges if new == "[*]"} == {status.value for status in CLOSED}


def test_the_table_of_a_message_names_who_takes_every_edge() -> None:
    rows = table(section(text("docs/state-machine.md"), "## A message"))
    named = {edge for row in rows for edge in re.findall(r"([A-Z_]+) → ([A-Z_]+)", row[0])}
    assert named == {(old.value, new.value) for old, new in EDGES}


def test_the_diagram_and_the_table_of_a_report_have_its_states() -> None:
    edges = drawn("## A report")
    assert {state for edge in edges for state in edge} - {"[*]"} == {state.value for state in ReportState}
    closed = set(ReportState) - {ReportState.OWED, ReportState.SENDING}
    assert {old for old, new in edges if new == "[*]"} == {state.value for state in closed}
    reopened = {edge for edge in edges if edge[0] in closed and edge[1] != "[*]"}
    assert reopened == {("GIVEN_UP", "SENDING"), ("GIVEN_UP", "OWED")}
    rows = table(section(text("docs/state-machine.md"), "## A report"))
    named = {edge for row in rows for edge in re.findall(r"([A-Z_]+) → ([A-Z_]+)", row[0])}
    assert named == {edge for edge in edges if "[*]" not in edge}


def test_the_table_of_reports_has_each_kind_with_its_result() -> None:
    rows = table(section(text("docs/state-machine.md"), "## A report"))
    kinds = {kind.value for kind in REPORT_RESULT}
    assert {(row[0], row[1]) for row in rows if row[0] in kinds} == {(k.value, r) for k, r in REPORT_RESULT.items()}


def test_the_tables_name_every_check_constraint_and_no_other() -> None:
    held = set(re.findall(r"CONSTRAINT (\w+)\s+CHECK", MIGRATION))
    named = {
        found
        for row in table(text("docs/state-machine.md"))
        for found in re.findall(r"^`(\w+)`", row[-1])
        if row[0].startswith("`")
    }
    assert len(held) > 5
    assert named == held


# Architecture


def test_every_index_is_explained() -> None:
    held = set(re.findall(r"CREATE INDEX (\w+)", MIGRATION)) | {"message_key"}
    rows = table(section(text("docs/architecture.md"), "### Why each index"))
    assert {re.match(r"`(\w+)`", row[0])[1] for row in rows} == held


def test_every_table_of_the_inbox_is_explained() -> None:
    held = set(re.findall(r"CREATE TABLE (inbox\.\w+) ", MIGRATION))
    named = {row[0].strip("`") for row in table(text("docs/architecture.md").partition("### Why each index")[0])}
    assert {name for name in named if name.startswith("inbox.")} == held


def test_every_answer_of_a_claim_is_explained() -> None:
    rows = table(section(text("docs/architecture.md"), "### What a claim answers"))
    answers = set(re.findall(r"(?:THEN|ELSE) '([A-Z]+)'", CLAIM.sql))
    assert len(answers) > 3
    assert {row[0].strip("`") for row in rows} == answers | {"no row"}


def test_every_statement_of_order_is_explained() -> None:
    rows = table(section(text("docs/architecture.md"), "## Order"))
    held = {name for name, value in vars(order).items() if isinstance(value, Statement)}
    assert {row[0].strip("`") for row in rows} == held


def test_every_role_is_explained() -> None:
    rows = table(section(text("docs/architecture.md"), "### Roles in Postgres"))
    roles = (ROOT / "inbox/store/migrations/versions/0004_roles.py").read_text(encoding="utf-8")
    assert {row[0].strip("`") for row in rows} == set(re.findall(r'"(inbox_\w+)"', roles))


def test_the_connections_and_slots_are_the_settings() -> None:
    told = section(text("docs/architecture.md"), "## Workers and connections")
    found = {name: int(value) for name, value in re.findall(r"`INBOX_([A-Z_]+)` \((\d+)\)", told)}
    fields = Settings.model_fields
    assert found == {name: fields[name.lower()].default for name in ("POOL", "ACTIVITIES", "REPORT_ACTIVITIES")}


def test_the_time_outs_are_those_of_the_settings() -> None:
    rows = table(section(text("docs/architecture.md"), "## Time-outs, in their order"))
    told = {row[0]: row[1] for row in rows}
    assert told == {f"`timeouts.{name}`": f"{field.default} s" for name, field in Timeouts.model_fields.items()}


def test_the_sequence_diagram_uses_participants_that_it_declares() -> None:
    (diagram,) = blocks(text("docs/architecture.md"), "mermaid")
    assert diagram.startswith("sequenceDiagram\n")
    declared = set(re.findall(r"participant (\w+) as", diagram))
    arrows = re.findall(r"^\s+(\w+)-?->>(\w+): [^;#\n]+$", diagram, re.MULTILINE)
    assert len(arrows) == diagram.count("->>")
    assert {name for arrow in arrows for name in arrow} == declared


# Decisions


def test_the_index_of_decisions_lists_each_once() -> None:
    listed = re.findall(r"^\| \[(\d{4})\]\((\S+)\)", text("docs/decisions/README.md"), re.MULTILINE)
    assert [name for _, name in listed] == [path.name for path in DECISIONS]
    assert [number for number, _ in listed] == [f"{n:04}" for n in range(1, len(DECISIONS) + 1)]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_its_parts(path: Path) -> None:
    content = path.read_text(encoding="utf-8")
    assert content.startswith(f"# {path.name[:4]}: ")
    assert re.findall(r"^## (.+)$", content, re.MULTILINE) == ["Context", "Decision", "Consequences", "Alternatives"]


# Links


def slugs(content: str) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(content), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_resolve(name: str) -> None:
    here = ROOT / name
    for link in LINK.findall(prose(text(name))):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (here.parent / target).resolve() if target else here
        assert path.exists(), f"{name} links to {link}, which is not there"
        assert path.is_relative_to(ROOT), f"{name} links out of the repository: {link}"
        if anchor:
            assert anchor in slugs(path.read_text(encoding="utf-8")), f"{name} links to {link}: no such heading"


def test_files_named_in_code_spans_exist() -> None:
    named = {(name, span) for name in NAMES for span in spans(text(name)) if re.fullmatch(r"[\w./-]+/[\w-]+\.py", span)}
    assert named
    # Those under stock/ are the package that docs/handlers.md writes.
    assert not {(name, span) for name, span in named if not (ROOT / span).is_file() and not span.startswith("stock/")}


# Commands and settings


def test_make_targets_and_variables_exist() -> None:
    makefile = text("Makefile")
    targets = {name for line in re.findall(r"^([a-z ]+):", makefile, re.MULTILINE) for name in line.split()}
    calls = [found for line in commands() if (found := re.match(r"(?:[A-Z_]+=\S+ )*make ([a-z]+)(.*)", line))]
    assert {"run", "up", "test", "lint"} <= {call[1] for call in calls} <= targets
    variables = {name for call in calls for name in re.findall(r" ([A-Z]+)=", call[2])}
    assert "ONCE" in variables
    assert not {name for name in variables if f"{name}=" not in makefile}


def test_inbox_commands_exist() -> None:
    known = set(typer.main.get_command(app).commands)
    named = {name for line in commands() for name in re.findall(r"(?:^|[\s/])inbox ([a-z][a-z-]*)", line)}
    assert {"serve", "worker", "migrate"} <= named <= known


def test_environment_settings_exist() -> None:
    known = {f"INBOX_{name.upper()}" for name in Settings.model_fields if name not in ("declared", "database_url")}
    named = {found for name in NAMES for found in re.findall(r"\bINBOX_[A-Z_]+\b", text(name))}
    assert "INBOX_CONFIG" in named
    assert named <= known


TABLES: dict[str, type[BaseModel]] = {
    "sources.NAME.report": ReportSettings,
    "sources.NAME": SourceSettings,
    "dispatch": DispatchSettings,
    "timeouts": Timeouts,
    "legacy": LegacySettings,
}


def test_dotted_settings_exist() -> None:
    found = set()
    for name in NAMES:
        for span in spans(text(name)):
            place, _, key = span.rpartition(".")
            if place in TABLES:
                found.add(place)
                assert key in TABLES[place].model_fields, f"{name}: {span}"
    assert len(found) > 3


# README's snippets


@pytest.mark.parametrize("name", NAMES)
def test_shell_snippets_are_shell(name: str) -> None:
    for block in blocks(text(name), "sh"):
        checked = subprocess.run(["sh", "-n"], input=block, text=True, capture_output=True, check=False)  # noqa: S607
        assert checked.returncode == 0, checked.stderr


def test_the_configuration_is_one() -> None:
    (block,) = blocks(text("README.md"), "toml")
    parsed = tomllib.loads(block)
    sources = Sources.model_validate(parsed)
    assert sources.legacy
    assert sources.legacy.source in sources.sources
    assert set(parsed["handlers"]) == {"survey_send"}
    SurveySendSettings.model_validate(parsed["handlers"]["survey_send"])


def test_the_messages_sent_are_read_by_their_doors_and_handlers() -> None:
    sent = [
        (door, body.encode())
        for block in blocks(text("README.md"), "sh")
        for door, body in re.findall(r"\$INGEST/(\S+)\" \\\n(?:  -H [^\n]+\n)  -d '([^']+)'", block)
    ]
    assert [door for door, _ in sent] == ["legacy/survey-send", "messages", "legacy/survey-send"]
    for door, body in sent:
        if door == "messages":
            incoming = read_event(parse_json(body), body)
            assert incoming.source == "report-producer"
            Count.model_validate(decode(incoming.content_type, body))
        else:
            incoming = read_survey_send(parse_json(body), body, LegacySettings())
            payload = SurveySend.model_validate(decode(incoming.content_type, body))
            assert payload.recipientNm  # the stand-in's account service wants both
            assert payload.mobile


def test_the_query_names_columns_that_exist() -> None:
    (query,) = (block for block in blocks(text("README.md"), "sql") if block.startswith("SELECT"))
    tables = {"a": "inbox.attempt", "m": "inbox.message"}
    named = set(re.findall(r"\b([am])\.(\w+)", query))
    assert len(named) > 5
    for alias, column in named:
        (definition,) = re.findall(
            rf"CREATE TABLE {re.escape(tables[alias])} \((.*?)^\)", MIGRATION, re.MULTILINE | re.DOTALL
        )
        assert re.search(rf"^    {column} ", definition, re.MULTILINE), f"{tables[alias]}.{column}"


# What producers are told


def raised_problems() -> set[tuple[int, str]]:
    """Return status and kind of every HttpProblem that the doors make, and of every refusal."""
    found = {(status, kind) for status, kind in REFUSALS.values()}
    for path in (ROOT / "inbox/ingest").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "HttpProblem":
                status, kind = (_constant(argument) for argument in node.args[:2])
                if isinstance(status, int) and isinstance(kind, str):
                    found.add((status, kind))
    return found


def _constant(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def test_producers_are_told_every_problem_and_no_other() -> None:
    rows = table(section(text("docs/producers.md"), "## Problems"))
    told = {(int(row[0]), row[1].strip("`")) for row in rows}
    # What the router refuses by itself; its 404 is among the others.
    assert told == raised_problems() | {(405, "method-not-allowed")}


def test_the_openapi_document_has_every_problem_and_no_other() -> None:
    assert {(status, kind) for status, (kinds, _) in PROBLEMS.items() for kind in kinds} == raised_problems() | {
        (405, "method-not-allowed")
    }


def test_producers_are_told_every_kind_of_order() -> None:
    rows = table(section(text("docs/producers.md"), "## Order"))
    assert {row[0].strip("`") for row in rows} == set(get_args(SourceSettings.model_fields["order"].annotation))


def test_producers_are_shown_the_table_of_bad_input_that_is_tested() -> None:
    shown = [
        line
        for line in section(text("docs/producers.md"), "## Bad input, case by case").splitlines()
        if line[:1] == "|"
    ]
    assert shown[2:] == [case.line() for case in CASES]


def test_every_metric_is_explained() -> None:
    rows = table(section(text("docs/architecture.md"), "## Metrics"))
    made = set(re.findall(r'"(inbox\.[a-z.]+)"', text("inbox/metrics.py")))
    assert {row[0].strip("`") for row in rows} == made


def test_the_answer_shown_to_producers_is_json() -> None:
    shown = [json.loads(block) for block in blocks(text("docs/producers.md"), "json")]
    assert [sorted(answer) for answer in shown] == [["duplicate", "id", "receivedAt", "source", "status", "workflowId"]]


# What operators are told


def test_operators_are_told_every_own_code_with_its_hint() -> None:
    rows = table(section(text("docs/operators.md"), "## The inbox's own codes"))
    codes = {code.value for code in OwnCode}
    told = {row[0].strip("`"): row[2] for row in rows}
    assert {code: hint for code, hint in told.items() if code in codes} == {
        code: HINTS.get(code, "none") for code in codes
    }
    assert {code for code in told if code not in codes} == {"NotServed", "StoreUnavailable", "SUPERSEDED", "NOT_TAKEN"}


def test_operators_filter_by_search_attributes_that_exist() -> None:
    named = set(re.findall(r"\bInbox[A-Z]\w+", text("docs/operators.md")))
    assert named == set(SEARCH_ATTRIBUTES)


def test_operators_are_told_every_command_of_theirs_and_no_other() -> None:
    rows = table(section(text("docs/operators.md"), "## Commands"))
    processes = {"serve", "worker", "migrate", "dev"}
    assert {row[0].strip("`") for row in rows} == {
        f"inbox {name}" for name in typer.main.get_command(app).commands if name not in processes
    }


def test_what_operators_query_are_columns_that_exist() -> None:
    (query,) = blocks(text("docs/operators.md"), "sql")
    (definition,) = re.findall(r"CREATE TABLE inbox\.message \((.*?)^\)", MIGRATION, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"\b[mb]\.(\w+)", query))
    assert len(named) > 5
    assert not {column for column in named if not re.search(rf"^    {column} ", definition, re.MULTILINE)}
