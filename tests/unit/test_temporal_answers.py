"""What the log says of a call to Temporal that failed: who did not answer, or what was answered, and never its text."""

import pytest
from temporalio.service import RPCError, RPCStatusCode

from inbox.temporal import answer_of


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RPCError("Timeout expired", RPCStatusCode.CANCELLED, b""), "Temporal gives no answer"),
        (RPCError("deadline", RPCStatusCode.DEADLINE_EXCEEDED, b""), "Temporal gives no answer"),
        (RPCError("tcp connect error", RPCStatusCode.UNAVAILABLE, b""), "Temporal gives no answer"),
        (RuntimeError("Failed client connect"), "Temporal gives no answer"),
        (RPCError("namespace x", RPCStatusCode.PERMISSION_DENIED, b""), "Temporal says PERMISSION_DENIED"),
        (RPCError("blob of x", RPCStatusCode.INVALID_ARGUMENT, b""), "Temporal says INVALID_ARGUMENT"),
    ],
)
def test_a_failed_call_is_named_by_who_did_not_answer_or_by_what_was_answered(error: Exception, said: str) -> None:
    assert answer_of(error) == said
