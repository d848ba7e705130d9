"""What may be said of an error that is not ours: class and status, never its message (spec section 8)."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import psycopg
import pytest
import sqlalchemy as sa
from pydantic import BaseModel

from deploy.dev.ports import choose
from deploy.dev.postgres import Postgres
from inbox.errors import BusinessError, ContentConflict, Malformed, fault_of
from inbox.store.engine import sqlalchemy_url

PLANTED = "PLANTED-900000001"
TWICE = f"""
    CREATE TEMPORARY TABLE patient (number text PRIMARY KEY);
    INSERT INTO patient VALUES ('{PLANTED}');
    INSERT INTO patient VALUES ('{PLANTED}');"""


def raised(call: Callable[[], object]) -> Exception:
    """Return the error that ``call`` ends by; its own text does hold what was planted, or the test proves nothing."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return caught.value


def said(error: Exception) -> str:
    fault = fault_of(error)
    assert PLANTED not in f"{fault} {fault!r}"
    assert "\n" not in str(fault)
    return str(fault)


def test_of_a_drivers_error_class_and_sqlstate_are_said(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url) as connection:
        error = raised(lambda: connection.execute(TWICE))
        connection.rollback()
    assert PLANTED in str(error)
    assert said(error) == "UniqueViolation 23505"


def test_of_sqlalchemys_error_the_drivers_class_and_sqlstate_are_said(postgres: Postgres) -> None:
    engine = sa.create_engine(sqlalchemy_url(postgres.url), poolclass=sa.NullPool)
    with engine.connect() as connection:
        error = raised(lambda: connection.execute(sa.text("SELECT CAST(:value AS integer)"), {"value": PLANTED}))
    assert PLANTED in str(error)
    assert said(error) == "InvalidTextRepresentation 22P02"


def test_of_a_server_that_is_away_the_class_is_said() -> None:
    port = choose(["none"])["none"]
    error = raised(lambda: psycopg.connect(f"postgresql://{PLANTED}@127.0.0.1:{port}/{PLANTED}", connect_timeout=5))
    assert said(error) == "OperationalError"


def test_of_an_http_error_class_and_status_are_said() -> None:
    response = httpx.Response(503, request=httpx.Request("GET", f"http://hospital/patients/{PLANTED}"))
    error = raised(response.raise_for_status)
    assert PLANTED in str(error)
    assert said(error) == "HTTPStatusError 503"


def test_of_an_http_call_without_an_answer_the_class_is_said() -> None:
    port = choose(["none"])["none"]
    with httpx.Client(trust_env=False) as client:
        error = raised(lambda: client.get(f"http://127.0.0.1:{port}/{PLANTED}"))
    assert said(error) == "ConnectError"


def test_of_a_models_error_the_class_is_said() -> None:
    class Patient(BaseModel):
        number: int

    error = raised(lambda: Patient.model_validate({"number": PLANTED}))
    assert PLANTED in str(error)
    assert said(error) == "ValidationError"


def test_of_any_other_error_the_class_is_said() -> None:
    assert said(KeyError(PLANTED)) == "KeyError"
    assert said(BusinessError("CODE", PLANTED)) == "BusinessError"


def test_a_refusal_names_its_field_and_what_is_wrong() -> None:
    assert str(Malformed("id", "must be a string")) == "id: must be a string"
    assert str(ContentConflict("", "was used before")) == "was used before"


def test_a_business_error_shows_its_code_and_keeps_its_reason_apart() -> None:
    error = BusinessError("FORM_NOT_REGISTERED", PLANTED)
    assert (str(error), error.code, error.reason) == ("FORM_NOT_REGISTERED", "FORM_NOT_REGISTERED", PLANTED)
