"""Reads JSON strictly, and names content by its hash (spec section 4)."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn

import rfc8785

from inbox.errors import Unreadable

MAX_DEPTH = 64


class Duplicated(Exception):
    """An object names one key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Duplicated
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(name)


def _too_deep(body: bytes) -> bool:
    """Tell whether brackets outside strings nest deeper than MAX_DEPTH; cheap where there are few of them."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    depth, in_string, escaped = 0, False, False
    for byte in body:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif byte in b"]}":
            depth -= 1
    return False


def parse_json(body: bytes) -> Any:
    """Parse a JSON text (RFC 8259) in UTF-8.

    Raises Unreadable for what is not JSON, and for what JSON leaves undefined: a key twice in one object, NaN and
    infinities, nesting deeper than 64.
    """
    if _too_deep(body):
        raise Unreadable("", f"JSON nested deeper than {MAX_DEPTH}")
    try:
        return json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except Duplicated:
        raise Unreadable("", "JSON object with a duplicate key") from None
    except (ValueError, RecursionError):
        raise Unreadable("", "not JSON in UTF-8") from None


def content_hash(value: Any, body: bytes) -> bytes:
    """Return the SHA-256 that stands for the content.

    Of the canonical form (RFC 8785), so that key order, white space and ``1`` or ``1.0`` make no difference;
    where that has no room for the value (integers outside ±2^53, 1e400, lone surrogates), of ``body`` as received.
    """
    try:
        canonical = rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, ValueError, RecursionError):
        canonical = body
    return hashlib.sha256(canonical).digest()
