"""Reads a stored payload back, as the handler's model wants it."""

from __future__ import annotations

import base64
import json
from typing import Any

from pydantic import BaseModel

from inbox.errors import InvalidPayload

STRUCTURED = "application/cloudevents+json"


def decode(content_type: str, body: bytes) -> Any:
    """Return the data of a message from the bytes received. Raises ValueError.

    A structured-mode event was stored whole, so that what is kept is what was received; its data is inside.
    """
    value = json.loads(body)
    if content_type != STRUCTURED:
        return value
    if "data_base64" in value:
        return json.loads(base64.b64decode(value["data_base64"]))
    return value.get("data")


def read_payload(model: type[BaseModel], content_type: str, body: bytes) -> BaseModel:
    """Return the payload as a handler's model. Raises InvalidPayload."""
    try:
        return model.model_validate(decode(content_type, body))
    except (ValueError, RecursionError):  # pydantic's ValidationError is one; its text would hold the input
        raise InvalidPayload from None
