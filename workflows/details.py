"""What an operator reads in the Temporal UI, in Markdown: what happened, to what, and what to do (spec section 7).

Codes, hints and keys only: nothing that a message holds.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from inbox.references import RegisterResult, Tried


def _lines(*lines: str | None) -> str:
    return "\n\n".join(line for line in lines if line)


def open_message(key: str) -> str:
    """Return the text of a message that no try has failed of yet."""
    return _lines("**OPEN**: accepted, its first try is under way or waits for a worker.", f"Record: `{key}`")


def failed_message(key: str, failed: Tried) -> str:
    """Return the text of a message that waits for its next try."""
    return _lines(
        f"**FAILED**: try {failed.number} of {failed.limit}, code `{failed.code}`; the next in {failed.next_in:.0f} s.",
        failed.hint and f"What helps: {failed.hint}.",
        f"Nothing has to be done for the next try. To give it up: `inbox discard {key}`",
    )


def closed_message(key: str, result: RegisterResult) -> str:
    """Return the text of a closed message."""
    if result.status != "DEAD":
        return _lines(f"**{result.status}**: there is nothing to do.", f"Record: `{key}`")
    return _lines(
        f"**DEAD**: given up, code `{result.code}`. Nothing of it was registered.",
        result.hint and f"What helps: {result.hint}.",
        f"To send it through again: `inbox redrive {key}`",
    )
