"""The namespace's retention passes: Temporal forgets its closed executions, and the record goes on without them."""

from __future__ import annotations

from pathlib import Path

from inbox.burial import redrive, send_again
from inbox.message import Key
from tests.support.operating import Operator
from tests.support.stack import Stack, survey


async def test_what_temporal_has_forgotten_the_record_still_knows(forgetful: Stack, tmp_path: Path) -> None:
    operator = Operator(forgetful, tmp_path)
    await operator.start()
    completed, dead = await operator.completed(), await operator.dead()
    await forgetful.hospital.control(reports=[500] * 100)
    unheard = await operator.dead("SENDING")
    (untold,) = await forgetful.reports(unheard["message_id"])
    await operator.obeyed("workflow", "cancel", "--workflow-id", untold["workflow_id"])
    await forgetful.reported(unheard["message_id"], "GIVEN_UP")
    by_hand = await operator.between_tries()  # open, and its execution is over
    await operator.on_activity("complete", by_hand, "--result", '{"status": "COMPLETED"}')
    running = await operator.between_tries()
    reports = [
        report["workflow_id"] for row in (dead, unheard) for report in await forgetful.reports(row["message_id"])
    ]
    for workflow_id in [*(row["workflow_id"] for row in (completed, dead, unheard, by_hand)), *reports]:
        await operator.vanished(workflow_id)

    again = await forgetful.legacy(survey(srvyDrawupNo=completed["message_id"], patno=completed["subject"]))
    assert again.json()["duplicate"] is True
    other = await forgetful.legacy(survey(srvyDrawupNo=completed["message_id"], patno="900900900"))
    assert other.headers["X-Result"] == "N"
    await operator.regroup()
    await forgetful.hospital.control(reports=[])
    await redrive(forgetful.database, Key("", "hospital", dead["message_id"]))
    await send_again(forgetful.database, Key("", "hospital", unheard["message_id"]))
    await operator.mended()
    await operator.on_activity("reset", running)
    await operator.settled()
    ends = {
        row["message_id"]: (row["status"], row["tries"], row["generation"], row["report_state"])
        for row in await forgetful.sql("SELECT * FROM inbox.message")
    }
    assert ends == {
        completed["message_id"]: ("COMPLETED", 1, 1, None),
        dead["message_id"]: ("COMPLETED", 2, 2, "SENT"),
        unheard["message_id"]: ("DEAD", 1, 1, "SENT"),
        by_hand["message_id"]: ("COMPLETED", 2, 1, None),
        running["message_id"]: ("COMPLETED", 2, 1, None),
    }
    assert [report["kind"] for report in await forgetful.reports(dead["message_id"])] == ["DEAD", "CORRECTION"]
