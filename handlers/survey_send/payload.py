"""What a survey-send message holds, as the old system sends it."""

from __future__ import annotations

import re
from datetime import datetime, tzinfo
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

FOURTEEN_DIGITS = re.compile("[0-9]{14}")


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds NUL, the one character that Postgres cannot keep")
    return text


Text = Annotated[str, AfterValidator(_without_nul)]


class SurveySend(BaseModel):
    """One survey to send to one patient.

    ``srvyDrawupNo`` is the message's ID, ``patno`` the patient's number, ``formCd`` the form; ``sendDt`` is
    ``YYYYMMDDHHMMSS`` in the source's time zone, and anything at all where the old system left it empty.
    """

    model_config = ConfigDict(extra="allow")

    srvyDrawupNo: Text = Field(min_length=1)
    patno: Text = Field(min_length=1)
    formCd: Text = Field(min_length=1)
    sendDt: Any = None
    recipientNm: Text | None = None
    mobile: Text | None = None
    deptCd: Text | None = None


def send_time(payload: SurveySend, received_at: datetime, zone: tzinfo) -> datetime:
    """Return when the survey is to be sent, aware.

    An empty, null or unreadable ``sendDt`` means at once: the time of receipt, the same in every try.
    """
    text = payload.sendDt
    if not isinstance(text, str) or not FOURTEEN_DIGITS.fullmatch(text):  # strptime alone takes less and more
        return received_at
    try:
        return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=zone)
    except ValueError:
        return received_at
