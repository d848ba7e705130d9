"""A message's identity: its key, its limits, its workflow ID (spec sections 4, 6, 14)."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from inbox.errors import Malformed

# UTF-8 bytes (spec section 4).
LIMITS = {"tenant": 64, "source": 255, "id": 512, "type": 255, "subject": 512}
MAX_WORKFLOW_ID = 900
RESEND = ".resend"  # behind the type of a message that is sent again
MAX_SEQUENCE = 2**63 - 1
EDITION = re.compile("[1-9][0-9]{0,8}")


def check_text(field: str, value: object, limit: int | None = None, *, name: str | None = None) -> str:
    """Return ``value`` if it may stand in ``field``; raises Malformed, naming the field and the fault.

    ``name`` is what the sender calls the field, where it calls it otherwise.
    """
    shown = name or field
    if not isinstance(value, str):
        raise Malformed(shown, "must be a string")
    if not value.strip():
        raise Malformed(shown, "must not be empty or blank")
    if "\0" in value:
        raise Malformed(shown, "must not hold NUL")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Malformed(shown, "must be valid Unicode (it holds a lone surrogate)") from None
    limit = limit or LIMITS[field]
    if size > limit:
        raise Malformed(shown, f"must not be longer than {limit} bytes in UTF-8 (it has {size})")
    return value


def quote_part(part: str) -> str:
    """Percent-encode one part of a key: slash and ``~`` too, so that parts and edition can be told apart."""
    return quote(part, safe="").replace("~", "%7E")


def _is_text(part: str) -> bool:
    """Tell whether Postgres takes it: an argument of a command can hold bytes that are no UTF-8, as lone surrogates."""
    try:
        return b"\0" not in part.encode()
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True)
class Key:
    """What names one message: (tenant, source, message ID), and an edition where one is meant."""

    tenant: str
    source: str
    id: str
    edition: int | None = None

    def __str__(self) -> str:
        parts = [part for part in (self.tenant, self.source, self.id) if part]
        suffix = f"~{self.edition}" if self.edition and self.edition > 1 else ""
        return "/".join(map(quote_part, parts)) + suffix

    @classmethod
    def parse(cls, text: str) -> Key:
        """Read ``source/id`` or ``tenant/source/id``, ``~N`` behind it for an edition, parts percent-encoded.

        Raises Malformed.
        """
        text, tilde, edition = text.partition("~")
        if tilde and not EDITION.fullmatch(edition):
            raise Malformed("key", "an edition is a number from 1, behind ~")
        try:
            parts = [unquote(part, errors="strict") for part in text.split("/")]
        except UnicodeDecodeError:
            raise Malformed("key", "must be percent-encoded UTF-8") from None
        if len(parts) not in (2, 3) or not all(parts):
            raise Malformed("key", "must be source/id or tenant/source/id")
        if any(not _is_text(part) for part in parts):
            raise Malformed("key", "must be text, without NUL")
        tenant, source, message_id = ["", *parts][-3:]
        return cls(tenant, source, message_id, int(edition) if tilde else None)


def workflow_id(inbox: str, key: Key, *, private: bool = False, secret: bytes = b"") -> str:
    """Return the ID of the message's workflow: the inbox's name and the key (spec section 6).

    Where that is over 900 bytes, or the source's IDs are ``private``, an HMAC-SHA-256 under ``secret`` stands in
    place of the message ID; and of tenant and source too where those alone are too long.
    """
    plain = f"{inbox}/{key}"
    if len(plain) <= MAX_WORKFLOW_ID and not private:
        return plain
    named = f"{key.tenant}\0{key.source}\0{key.id}"
    digest = hmac.new(secret, named.encode(), hashlib.sha256).hexdigest()
    # Behind a sign that is percent-encoded wherever a part holds it, so that no ID can look like a hash.
    edition = f"~{key.edition}" if key.edition and key.edition > 1 else ""
    scope = "/".join(quote_part(part) for part in (inbox, key.tenant, key.source) if part)
    hashed = f"{scope}/={digest}{edition}"
    return hashed if len(hashed) <= MAX_WORKFLOW_ID else f"{inbox}/={digest}{edition}"
