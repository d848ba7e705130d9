"""Reads JSON strictly, and names content by its hash (spec section 4)."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn

import rfc8785

from inbox.errors import Malformed, Unreadable

MAX_DEPTH = 64
TOO_DEEP = f"JSON nested deeper than {MAX_DEPTH}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("", "JSON object with a duplicate key")
    return found


def _constant(_: str) -> NoReturn:
    raise Malformed("", "JSON with NaN or an infinity")


def _too_deep(value: Any) -> bool:
    """Tell whether containers nest deeper than MAX_DEPTH, level by level."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        children = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for each in children for child in each if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def parse_json(body: bytes) -> Any:
    """Parse a JSON text (RFC 8259) in UTF-8.

    Raises Unreadable for what is not JSON, and Malformed for what JSON leaves undefined or unbounded: a key twice in
    one object, NaN and infinities, nesting deeper than 64, numbers of thousands of digits.
    """
    try:
        value = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise Unreadable("", "not JSON in UTF-8") from None
    except RecursionError:
        raise Malformed("", TOO_DEEP) from None
    except ValueError:  # Python's own limit on digits
        raise Malformed("", "JSON with a number of too many digits") from None
    if _too_deep(value):
        raise Malformed("", TOO_DEEP)
    return value


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
