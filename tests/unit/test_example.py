"""The annotated example is what it says: valid, complete, and showing the defaults."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from handlers.http_bundle.client import HttpBundleSettings
from handlers.survey_send.clients import SurveySendSettings
from inbox.registry import load_handlers
from inbox.settings import Settings
from inbox.sources import CodeSettings, DispatchSettings, LegacySettings, ReportSettings, Sources, SourceSettings
from inbox.timeouts import Timeouts

HANDLER = "handler"  # names the class, and is no setting of its own
TEXT = (Path(__file__).parents[2] / "deploy/inbox.example.toml").read_text()
EXAMPLE = tomllib.loads(TEXT)
SHOWN: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (SourceSettings, EXAMPLE["sources"]["hospital"]),
    (ReportSettings, EXAMPLE["sources"]["hospital"]["report"]),
    (CodeSettings, EXAMPLE["sources"]["hospital"]["codes"]["GROUP_NOT_FOUND"]),
    (LegacySettings, EXAMPLE["legacy"]),
    (DispatchSettings, EXAMPLE["dispatch"]),
    (Timeouts, EXAMPLE["timeouts"]),
    (SurveySendSettings, EXAMPLE["handlers"]["survey_send"]),
    (HttpBundleSettings, {k: v for k, v in EXAMPLE["handlers"]["http_bundle"].items() if k != HANDLER}),
]
OWN = {"tokens", "zone", "report", "codes", "hint", "retry", "headers"}  # shown with a value of the case


def test_it_is_accepted() -> None:
    assert set(Sources.model_validate(EXAMPLE).sources) == {"hospital"}
    load_handlers(
        Settings(DATABASE_URL="postgresql://h/d").model_copy(update={"declared": Sources.model_validate(EXAMPLE)})
    )


def test_every_setting_is_in_it() -> None:
    assert set(Sources.model_fields) == set(EXAMPLE)
    for model, table in SHOWN:
        missing = {name for name in model.model_fields if name not in table and f"# {name} =" not in TEXT}
        assert missing == set(), model.__name__


def test_what_it_shows_are_the_defaults() -> None:
    for model, table in SHOWN:
        for name in {name for name in table if not model.model_fields[name].is_required()} - OWN:
            default = model.model_fields[name].default
            assert table[name] == (list(default) if isinstance(default, tuple) else default), name
