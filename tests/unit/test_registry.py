"""Handlers are found by their entry points, built with their own settings, or refused in one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.report_counter import ReportCounter
from handlers.survey_send import SurveySendHandler
from inbox.errors import SettingsError
from inbox.registry import GROUP, load_handlers
from inbox.settings import Settings, Sources

SECRET = "PLANTED-secret"
URL = {"url": "http://hospital.test"}


def settings(**handlers: dict[str, Any]) -> Settings:
    return Settings(DATABASE_URL="postgresql://h/d").model_copy(
        update={"declared": Sources.model_validate({"handlers": handlers})}
    )


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Install a package with one handler, as somebody else's would be."""

    def install_package(name: str, point: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        metadata = tmp_path / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{point} = {name}:Handler\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install_package


async def test_what_is_installed_is_found_by_its_type() -> None:
    found = load_handlers(settings(survey_send=URL))
    assert {name: type(handler) for name, handler in found.items()} == {
        "survey.send": SurveySendHandler,
        "survey.send.resend": SurveySendHandler,
        "report.count": ReportCounter,
    }
    await found["survey.send"].aclose()


def test_a_handler_whose_settings_are_missing_is_left_out() -> None:
    assert list(load_handlers(settings())) == ["report.count"]


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({}, "handlers.survey_send.url: "),
        ({"url": 7}, "handlers.survey_send.url: "),
        (URL | {"lookup_ttl": 0}, "handlers.survey_send.lookup_ttl: "),
        (URL | {"lookup_ttl": SECRET}, "handlers.survey_send.lookup_ttl: "),
        (URL | {"speling": SECRET}, "handlers.survey_send.speling: "),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_their_place(table: dict[str, Any], place: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_handlers(settings(survey_send=table))
    assert str(refused.value).startswith(place)
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_settings_of_a_handler_that_is_not_installed_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"^handlers\.survey_sent: no handler of that name is installed$"):
        load_handlers(settings(survey_sent=URL))


def test_a_package_of_others_brings_its_handler(install: Callable[[str, str, str], None]) -> None:
    install("welcome_package", "welcome", "class Handler:\n    type = 'customer.created'\n")
    found = load_handlers(settings())
    assert sorted(found) == ["customer.created", "report.count"]
    assert type(found["customer.created"]).__module__ == "welcome_package"


def test_a_handler_of_others_gets_its_own_table(install: Callable[[str, str, str], None]) -> None:
    install(
        "greeting_package",
        "greeting",
        "import pydantic\n"
        "class Table(pydantic.BaseModel):\n    word: str\n"
        "class Handler:\n    type = 'greeting'\n    settings = Table\n"
        "    def __init__(self, table):\n        self.table = table\n",
    )
    assert load_handlers(settings(greeting={"word": "안녕"}))["greeting"].table.word == "안녕"  # type: ignore[attr-defined]
    assert "greeting" not in load_handlers(settings())


async def test_a_handler_of_others_gets_its_look_up_caches_where_it_asks_for_them(
    install: Callable[[str, str, str], None],
) -> None:
    install(
        "rates_package",
        "rates",
        "class Handler:\n    type = 'rates'\n"
        "    def __init__(self, lookups):\n        self.rates = lookups.cache('rate', str, self.rate)\n"
        "    async def rate(self, key):\n        return 'rate of ' + key\n",
    )
    handler: Any = load_handlers(settings())["rates"]
    assert await handler.rates.get("EUR") == "rate of EUR"


def test_two_handlers_of_one_type_are_refused(install: Callable[[str, str, str], None]) -> None:
    install("second_package", "second_counter", "class Handler:\n    type = 'report.count'\n")
    with pytest.raises(SettingsError, match=r"^handlers\.second_counter: a second handler for type report\.count$"):
        load_handlers(settings())
