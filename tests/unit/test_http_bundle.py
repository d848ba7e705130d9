"""How a refusal of http_bundle's service becomes a code and a reason, and which settings it takes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from handlers.http_bundle.client import HttpBundleSettings, _kept, _refuse
from inbox.handler import BusinessError, Message

SECRET = "PLANTED-secret"
REQUEST = httpx.Request("POST", "http://h/bundles")


def refusal(problem: Any, status: int = 422, media: str = "application/problem+json") -> tuple[str, str]:
    """Return code and reason of the BusinessError that such an answer is."""
    with pytest.raises(BusinessError) as refused:
        _refuse(httpx.Response(status, json=problem, headers={"Content-Type": media}, request=REQUEST))
    return refused.value.code, refused.value.reason


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        ({"code": "OUT_OF_STOCK", "type": "https://h/problems/other"}, "OUT_OF_STOCK"),
        ({"code": "lower_1"}, "lower_1"),
        ({"type": "https://h/problems/out-of-stock"}, "OUT_OF_STOCK"),
        ({"type": "https://h/problems/out-of-stock/"}, "OUT_OF_STOCK"),
        ({"type": "https://h/problems#out.of stock"}, "OUT_OF_STOCK"),
        ({"type": "urn:problem-type:belgif:badRequest"}, "BADREQUEST"),
        ({"type": "about:blank"}, "HTTP_422"),
        ({"type": "https://h/problems/404"}, "HTTP_422"),  # no code begins with a digit
        ({"type": "재고없음"}, "HTTP_422"),
        ({"type": 7}, "HTTP_422"),
        ({}, "HTTP_422"),
        # What is no constant goes nowhere: codes reach Temporal.
        ({"code": "patient 900000001"}, "HTTP_422"),
        ({"code": "9" * 5}, "HTTP_422"),
        ({"code": "A" * 65}, "HTTP_422"),
        ({"code": 7, "type": "x:taken"}, "TAKEN"),
    ],
)
def test_the_code_is_a_constant_whatever_the_problem_holds(problem: Any, code: str) -> None:
    assert refusal(problem)[0] == code


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ({"detail": "재고가 없습니다", "title": "Out of stock"}, "재고가 없습니다"),
        ({"detail": "", "title": "Out of stock"}, "Out of stock"),
        ({"detail": 7, "title": "Out of stock"}, "Out of stock"),
        ({}, "HTTP status 409"),
        ({"detail": "x" * 5000}, "x" * 1000),
    ],
)
def test_the_reason_is_the_detail_or_the_title_and_bounded(problem: Any, reason: str) -> None:
    assert refusal(problem, 409, "application/problem+json; charset=utf-8")[1] == reason


@pytest.mark.parametrize("status", [301, 408, 425, 429, 500, 503])
def test_what_is_no_refusal_is_a_system_error_even_with_a_problem_document(status: int) -> None:
    answer = httpx.Response(
        status, json={"code": "X"}, headers={"Content-Type": "application/problem+json"}, request=REQUEST
    )
    with pytest.raises(httpx.HTTPStatusError):
        _refuse(answer)


@pytest.mark.parametrize("body", [b"", b"[]", b"not json", b"[" * 100_000])
def test_a_problem_document_that_is_none_is_a_system_error(body: bytes) -> None:
    answer = httpx.Response(422, content=body, headers={"Content-Type": "application/problem+json"}, request=REQUEST)
    with pytest.raises(httpx.HTTPStatusError):
        _refuse(answer)


@pytest.mark.parametrize(
    "own",
    [
        {"url": "nonsense"},
        {"timeout": 0},
        {"type": ""},
        {"headers": {"idempotency-key": "mine"}},
        {"headers": {"a b": "c"}},
        {"headers": {"X-A": f"{SECRET}\r\nX-B: c"}},
        {"spare": 1},
    ],
)
def test_settings_that_can_not_work_are_refused(own: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HttpBundleSettings.model_validate({"type": "t", "url": "http://h"} | own)


def test_settings_that_are_printed_show_no_secret() -> None:
    made = HttpBundleSettings.model_validate(
        {"type": "t", "url": "http://h", "token": SECRET, "headers": {"X-A": SECRET}}
    )
    assert SECRET not in f"{made!r} {made.model_dump_json()}"


@pytest.mark.parametrize(
    ("tenant", "edition", "key"),
    [("", 1, "shop/O%2F1%22%20%ED%99%98"), ("t", 2, "t/shop/O%2F1%22%20%ED%99%98~2")],
)
def test_a_messages_key_may_stand_in_a_header(tenant: str, edition: int, key: str) -> None:
    message = Message(tenant, "shop", 'O/1" 환', edition, "t", None, datetime.now(UTC), UTC, None)  # type: ignore[type-var]
    assert message.key == key
    assert message.key.isascii()


def test_a_result_of_any_depth_is_kept_or_left_out_and_fails_nothing() -> None:
    """A depth that is just read may be too much to write."""
    for depth in range(900, 1010):
        content = b'{"result": ' + b"[" * depth + b"]" * depth + b"}"
        assert _kept(httpx.Response(200, content=content)) == {"status": 200}
