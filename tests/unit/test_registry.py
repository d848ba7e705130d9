"""Handlers are found by their entry points, built with their own settings, or refused in one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.report_counter import ReportCounter
from handlers.survey_send import SurveySendHandler
from inbox.configfile import ConfigFile
from inbox.errors import SettingsError
from inbox.registry import GROUP, load_handlers
from inbox.settings import Settings
from inbox.sources import Sources

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


WHOLE = """
import pydantic
class Payload(pydantic.BaseModel):
    pass
class Table(pydantic.BaseModel):
    word: str
class Handler:
    type = "customer.created"
    payload = Payload
    def __init__(self, table=None):
        self.table = table
    async def prepare(self, message): pass
    async def register(self, tx, message, prepared): pass
"""


def refused(**tables: dict[str, Any]) -> str:
    """Return the one line that a worker with these tables says."""
    with pytest.raises(SettingsError) as error:
        load_handlers(settings(**tables))
    text = str(error.value)
    assert "\n" not in text
    assert SECRET not in text
    return text


def test_settings_of_a_handler_that_is_not_installed_are_refused() -> None:
    said = "handlers.survey_sent: no handler of that name is installed, and the table names no class (handler = …)"
    assert refused(survey_sent=URL) == said


def test_a_package_of_others_brings_its_handler(install: Callable[[str, str, str], None]) -> None:
    install("welcome_package", "welcome", WHOLE)
    found = load_handlers(settings())
    assert sorted(found) == ["customer.created", "report.count"]
    assert type(found["customer.created"]).__module__ == "welcome_package"


def test_a_handler_of_others_gets_its_own_table(install: Callable[[str, str, str], None]) -> None:
    install("greeting_package", "greeting", WHOLE + "    settings = Table\n")
    found = load_handlers(settings(greeting={"word": "안녕"}))
    assert found["customer.created"].table.word == "안녕"  # type: ignore[attr-defined]
    assert "customer.created" not in load_handlers(settings())


async def test_a_handler_of_others_gets_its_look_up_caches_where_it_asks_for_them(
    install: Callable[[str, str, str], None],
) -> None:
    install(
        "rates_package",
        "rates",
        WHOLE.replace("customer.created", "rates")
        + "    def __init__(self, lookups):\n        self.rates = lookups.cache('rate', str, self.rate)\n"
        "    async def rate(self, key):\n        return 'rate of ' + key\n",
    )
    handler: Any = load_handlers(settings())["rates"]
    assert await handler.rates.get("EUR") == "rate of EUR"


def test_two_handlers_of_one_type_are_refused(install: Callable[[str, str, str], None]) -> None:
    install("second_package", "second_counter", WHOLE.replace("customer.created", "report.count"))
    said = (
        "entry point second_counter of temporal_inbox.handlers:"
        " a second handler for type report.count, which handlers.report_counter serves"
    )
    assert refused() == said


def test_two_packages_with_one_name_are_refused(install: Callable[[str, str, str], None]) -> None:
    install("one_package", "same", WHOLE)
    install("two_package", "same", WHOLE)
    assert (
        refused()
        == "entry point same of temporal_inbox.handlers: several packages have a handler of that name: one_package, two_package"
    )


# Listed in the settings


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Put a module on the path, without any package; return its name."""
    monkeypatch.syspath_prepend(tmp_path)
    numbers = iter(range(100))

    def write(source: str) -> str:
        name = f"listed_{tmp_path.name.replace('-', '_')}_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


def test_a_table_may_name_the_class_itself(module: Callable[[str], str]) -> None:
    reference = f"{module(WHOLE + '    settings = Table')}:Handler"
    found = load_handlers(settings(mine={"handler": reference, "word": "안녕"}))
    assert found["customer.created"].table.word == "안녕"  # type: ignore[attr-defined]


def test_one_class_serves_several_types_by_several_tables(module: Callable[[str], str]) -> None:
    source = WHOLE.replace('    type = "customer.created"\n', "") + "    settings = Table\n"
    source += "    @property\n    def type(self):\n        return self.table.word\n"
    reference = f"{module(source)}:Handler"
    first, second = {"handler": reference, "word": "first"}, {"handler": reference, "word": "second"}
    assert sorted(load_handlers(settings(a=first, b=second))) == ["first", "report.count", "second"]
    said = "handlers.b: a second handler for type first, which handlers.a serves"
    assert refused(a=first, b=first) == said


@pytest.mark.parametrize("reference", [7, "", "module", "module:", ":Class", "a b:C", "module:Class:more", "m.:C"])
def test_a_reference_that_is_none_is_refused(reference: Any) -> None:
    assert refused(mine={"handler": reference}) == 'handlers.mine.handler: must be "package.module:Class"'


@pytest.mark.parametrize(
    ("source", "attribute", "said"),
    [
        ("raise KeyError('PLANTED-secret')", "Handler", "cannot be imported: KeyError at {file}, line 1"),
        ("import not_there_at_all", "Handler", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("def broken(:", "Handler", "cannot be imported: SyntaxError at "),
        ("", "Handler", "has no attribute 'Handler'"),
        ("Handler = 7", "Handler", "not a handler: it is no class"),
        (WHOLE, "Payload", "not a handler: its type must be a string of 1 to 255 bytes"),
        (WHOLE.replace('"customer.created"', "''"), "Handler", "its type must be a string of 1 to 255 bytes"),
        (WHOLE.replace('"customer.created"', "'환' * 86"), "Handler", "its type must be a string of 1 to 255 bytes"),
        (WHOLE.replace("payload = Payload", "payload = dict"), "Handler", "its payload must be a pydantic model"),
        (WHOLE.replace("    payload = Payload\n", ""), "Handler", "its payload must be a pydantic model"),
        (WHOLE.replace("async def prepare", "async def prepair"), "Handler", "its prepare must be an async method"),
        (WHOLE.replace("async def register", "def register"), "Handler", "its register must be an async method"),
        (WHOLE.replace("tx, message, prepared", "tx, message"), "Handler", "its register must take 3 arguments"),
        (WHOLE + "    async def audit(self): pass", "Handler", "its audit must take 2 arguments beside self"),
        (WHOLE + "    def aclose(self): pass", "Handler", "its aclose must be an async method"),
        (WHOLE + "    codes = ['LATE']", "Handler", "its codes must map each code to a hint"),
        (WHOLE + "    codes = {'LATE': None}", "Handler", "its codes must map each code to a hint"),
        (WHOLE + "    non_retryable = 'LATE'", "Handler", "its non_retryable must be a collection of codes"),
        (WHOLE + "    timeout = '60'", "Handler", "its timeout must be a number of seconds"),
        (WHOLE + "    timeout = float('inf')", "Handler", "its timeout must be a number of seconds"),
        (WHOLE + "    timeout = 10**400", "Handler", "its timeout must be a number of seconds"),
        (WHOLE + "    timeout = -1", "Handler", "its timeout must be a number of seconds"),
        (WHOLE + "    reporter = object()", "Handler", "its reporter must have a method body"),
        (WHOLE + "    settings = dict", "Handler", "not a handler: its settings are no pydantic model"),
        (
            WHOLE.replace("self.table = table", "raise OSError('PLANTED-secret')"),
            "Handler",
            "cannot be built: OSError at",
        ),
    ],
)
def test_what_is_not_a_handler_is_refused_in_one_line(
    module: Callable[[str], str], tmp_path: Path, source: str, attribute: str, said: str
) -> None:
    name = module(source)
    line = refused(mine={"handler": f"{name}:{attribute}"})
    assert line.startswith("handlers.mine: ")
    assert said.format(file=tmp_path / f"{name}.py") in line


def test_settings_for_a_handler_that_takes_none_are_refused() -> None:
    assert (
        refused(report_counter={"spare": 1}) == "handlers.report_counter.spare: unknown setting: the handler takes none"
    )
    assert "report.count" in load_handlers(settings(report_counter={}))


def test_a_refusal_names_the_line_of_the_file(tmp_path: Path) -> None:
    toml = 'handlers.survey_send.url = "http://h"\n\n[handlers.mine]\n\nhandler = "nowhere:Class"\n'
    declared = Sources.read(ConfigFile("inbox.toml", toml))
    given = Settings(DATABASE_URL="postgresql://h/d").model_copy(update={"declared": declared})
    with pytest.raises(SettingsError, match=r"^inbox\.toml, line 3: handlers\.mine: nowhere:Class cannot be imported"):
        load_handlers(given)
    declared = Sources.read(ConfigFile("inbox.toml", '[handlers]\nsurvey_send = { url = "h" }\n'))
    with pytest.raises(SettingsError, match=r"^inbox\.toml, line 2: handlers\.survey_send\.url: "):
        load_handlers(given.model_copy(update={"declared": declared}))
