"""What an operator reads in the Temporal UI, in Markdown: what happened, to what, and what to do (spec section 7).

Codes, hints, counts and keys only: nothing that a message holds.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from inbox.references import MOST_COUNTED, RegisterResult, Tried


def _lines(*lines: str | None) -> str:
    return "\n\n".join(line for line in lines if line)


def _record(workflow_id: str) -> str:
    """Say where the record is; a hash in place of the message ID (it begins with =) is no key of it."""
    key = workflow_id.partition("/")[2]
    if _hashed(key):
        return "Its key is not shown here: find the record by this workflow ID, in its column `workflow_id`."
    return f"Record: `{key}`"


def _command(name: str, workflow_id: str) -> str:
    key = workflow_id.partition("/")[2]
    if _hashed(key):
        return f"`inbox {name} KEY`. {_record(workflow_id)}"
    return f"`inbox {name} {key}`"


def _hashed(key: str) -> bool:
    return key.rpartition("/")[2].startswith("=")


def _waiting(count: int) -> str | None:
    if not count:
        return None
    many = f"{MOST_COUNTED} or more" if count >= MOST_COUNTED else str(count)
    return f"Behind it, messages of its subject that wait: {many}."


def open_message(workflow_id: str) -> str:
    """Return the text of a message that no try has failed of yet."""
    return _lines("**OPEN**: accepted, its first try is under way or waits for a worker.", _record(workflow_id))


def failed_message(workflow_id: str, failed: Tried) -> str:
    """Return the text of a message that waits for its next try; a hint may speak of the redrive of a DEAD one."""
    return _lines(
        f"**FAILED**: try {failed.number} of {failed.limit}, code `{failed.code}`; the next in {failed.next_in:.0f} s.",
        failed.hint and f"What helps: {failed.hint}. (The next try needs no redrive.)",
        _waiting(failed.waiting),
        f"Nothing has to be done for the next try. To give it up: {_command('discard', workflow_id)}",
    )


def closed_message(workflow_id: str, result: RegisterResult) -> str:
    """Return the text of a closed message."""
    if result.status != "DEAD":
        return _lines(f"**{result.status}**: there is nothing to do.", _record(workflow_id))
    return _lines(
        f"**DEAD**: given up, code `{result.code}`. Nothing of it was registered.",
        result.hint and f"What helps: {result.hint}.",
        _waiting(result.waiting),
        f"To send it through again: {_command('redrive', workflow_id)}",
    )
