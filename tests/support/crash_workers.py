"""How a worker comes to each of its points."""

from __future__ import annotations

from tests.support.crash import LATE, UNKNOWN, Crash, Scenario
from tests.support.waiting import eventually

ENDINGS = "activities.endings.Endings"
REGISTER = "activities.register.RegisterActivity"
REPORT = "activities.report.ReportActivities"


def both(*names: str) -> tuple[str, ...]:
    """Return the points before and after what has these names."""
    return tuple(f"{when}:{name}" for name in names for when in ("before", "after"))


def ends(*owners: str) -> tuple[str, ...]:
    """Return the points before and after the commit of these transactions."""
    return tuple(f"{when}:{owner}" for owner in owners for when in ("committing", "committed"))


async def completes(crash: Crash) -> None:
    await crash.configure()
    await crash.send(crash.made(sendDt=LATE))
    await crash.killed("worker")


async def dies(crash: Crash) -> None:
    await crash.configure(tries=1)
    await crash.send(crash.made(formCd=UNKNOWN))
    await crash.killed("worker")


async def fails_first(crash: Crash) -> None:
    await crash.configure(tries=2)
    await crash.send(crash.made(formCd=UNKNOWN))
    await crash.killed("worker")


async def exhausts(crash: Crash) -> None:
    await crash.configure(tries=1)
    await crash.send(crash.made())
    await crash.killed("worker", f"committed:{REGISTER}._claim")
    await crash.killed("worker")


async def held(crash: Crash) -> None:
    await crash.configure()
    first = crash.made()
    await crash.send(first, crash.made(patno=first["partitionkey"]))
    await crash.killed("worker")


async def numbered(crash: Crash) -> None:
    await crash.configure(order="sequence")
    first = crash.made(1)
    await crash.send(first, crash.made(3, patno=first["partitionkey"]), crash.made(2, patno=first["partitionkey"]))
    await crash.killed("worker")


async def gap_ends(crash: Crash) -> None:
    await crash.configure(order="sequence", gap_timeout=0.01)
    first = crash.made(1)
    await crash.send(first, crash.made(3, patno=first["partitionkey"]))
    await crash.killed("worker")


async def delayed(crash: Crash) -> None:
    await crash.configure()
    await crash.stack.hospital.control(reports=[503])
    await crash.send(crash.made(sendDt=LATE))
    await crash.killed("worker")


async def given_up(crash: Crash) -> None:
    reporting = {"url": f"{crash.stack.hospital.url}/reports", "give_up_after": 1}
    await crash.configure(report=reporting)
    await crash.stack.hospital.control(reports=[500] * 50)
    await crash.send(crash.made(sendDt=LATE))
    await crash.killed("worker")


async def not_served(crash: Crash) -> None:
    await crash.configure({"sources": {}, "legacy": None})
    name, others = crash.stack.settings, crash.stack
    await crash.configure()
    await crash.send(crash.made())
    served, others.settings = others.settings, name
    async with crash.victim("worker"):
        pass
    others.settings = served


async def not_started(crash: Crash) -> None:
    await crash.configure()
    await crash.send(crash.made())
    await crash.killed("serve", TEMPORAL_ADDRESS="127.0.0.1:1")


async def report_owed(crash: Crash) -> None:
    await crash.configure(mode="direct")
    await crash.send(crash.made(sendDt=LATE))
    await crash.configure()


async def report_not_started(crash: Crash) -> None:
    await report_owed(crash)
    await crash.killed("serve", TEMPORAL_ADDRESS="127.0.0.1:1")


async def report_started(crash: Crash) -> None:
    await report_owed(crash)
    await crash.killed("serve")


async def started(crash: Crash) -> None:
    await crash.configure()
    await crash.send(crash.made())
    await crash.killed("serve")


async def ordered_later(crash: Crash) -> None:
    await crash.configure(order="none")
    await crash.send(crash.made())
    await crash.configure()
    await crash.killed("worker")


async def adopted(crash: Crash) -> None:
    await crash.configure(order="none")
    await crash.send(crash.made())
    await crash.killed("worker", "after:claim")
    await crash.configure()
    await crash.killed("worker")


async def resumed(crash: Crash) -> None:
    await crash.configure()
    first = crash.made()
    await crash.send(first, crash.made(patno=first["partitionkey"]))
    async with crash.stack.dispatching():
        await crash.stack.eventually_row("SELECT 1 FROM inbox.message WHERE held_since IS NOT NULL")
    await crash.configure(order="none")
    await crash.killed("worker")


async def new_day(crash: Crash) -> None:
    await crash.configure()
    await crash.send(crash.made())
    days = "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'inbox.payload'::regclass"
    last = max(row["name"] for row in await crash.stack.sql(days))
    await crash.stack.sql(f"DROP TABLE {last}")
    await crash.killed("worker")
    async with crash.healthy():
        await eventually(lambda: crash.stack.sql(days), lambda found: last in [row["name"] for row in found])


async def cancelled(crash: Crash) -> None:
    await crash.configure(retry_interval=600)
    message = crash.made(formCd=UNKNOWN)
    await crash.send(message)
    await crash.until("status = 'FAILED'")
    row = await crash.stack.row(message["id"])
    await crash.stack.temporal.get_workflow_handle(row["workflow_id"]).cancel()
    await crash.killed("worker")


async def terminated(crash: Crash) -> None:
    await crash.configure(retry_interval=600)
    crash.real, real = False, crash.real
    message = crash.made(formCd=UNKNOWN)
    await crash.send(message)
    await crash.until("status = 'FAILED'")
    row = await crash.stack.row(message["id"])
    await crash.stack.temporal.get_workflow_handle(row["workflow_id"]).terminate()
    query = f"WorkflowId = '{row['workflow_id']}' AND ExecutionStatus = 'Terminated'"

    async def shown() -> list[str]:
        return [found.id async for found in crash.stack.temporal.list_workflows(query)]

    await eventually(shown)
    await crash.killed("worker")
    crash.real = real


BURY = "inbox.burial.bury"
WORKERS = (
    Scenario(
        "a message that completes, and owes a notice",
        (
            *both("decide by arrival", "claim", "complete", "activity register"),
            *ends(f"{REGISTER}._claim", f"{REGISTER}._bundle"),
        ),
        completes,
    ),
    Scenario("a message that dies, and is reported", both("fail"), dies),
    Scenario("a try that fails, with one left", ends(f"{ENDINGS}._end"), fails_first),
    Scenario("a message whose last try was lost", (*both("bury"), *ends(f"{ENDINGS}._end")), exhausts),
    Scenario("a worker that serves no such source", both("set aside"), not_served),
    Scenario("an execution that is cancelled", (*both("activity bury"), *ends(BURY)), cancelled),
    Scenario("an execution that is terminated", ends(BURY), terminated, real=True),
)
REPORTS = (
    Scenario(
        "a notice that a message owes",
        (
            *both("begin report", "close report", "report call", "activity send_report"),
            *ends(f"{REPORT}._send", f"{REPORT}._close"),
        ),
        completes,
    ),
    Scenario("a report that upstream refuses once", both("delay report"), delayed),
    Scenario("a report that is given up", (*both("activity give_up_report"), f"committed:{REPORT}._close"), given_up),
)
ORDERED = (
    Scenario(
        "a message behind another",
        (*both("release by arrival"), *ends("inbox.dispatch.Dispatcher._may_go")),
        held,
    ),
    Scenario("messages by number", both("decide by sequence", "release by sequence"), numbered),
    Scenario("a gap whose time is over", ends("inbox.burial.bury_for_gap"), gap_ends),
    Scenario("a source that has order since", both("lock subject"), ordered_later),
    Scenario("a try from before its source had order", both("adopt"), adopted, real=True),
    Scenario("a message that an order held which is no more", both("resume"), resumed, real=True),
    Scenario("a day without a partition", both("make partitions"), new_day, real=True),
)
DISPATCHED = (
    Scenario("a message without a worker", both("lease message", "start ProcessMessage", "mark message"), started),
    Scenario("a report without a worker", both("lease report", "start SendReport", "mark report"), report_started),
    Scenario("a message while Temporal is away", both("put back message"), not_started),
    Scenario("a report while Temporal is away", both("put back report"), report_not_started),
)
