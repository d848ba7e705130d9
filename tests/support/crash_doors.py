"""How an ingest and an operator's command come to each of their points."""

from __future__ import annotations

from contextlib import suppress

from inbox.burial import discard, redrive, release, send_again
from inbox.errors import InboxError
from inbox.message import Key
from tests.support.crash import LATE, UNKNOWN, Crash, Scenario
from tests.support.crash_workers import BURY, DISPATCHED, both, ends

ACCEPT = "inbox.ingest.accept.Acceptor.accept"
DIRECT = "inbox.ingest.direct.Direct._bundle"
RELEASE = "inbox.burial.release"


def key(message: dict) -> Key:
    return Key("", "hospital", message["id"])


async def over_the_old_door(crash: Crash) -> None:
    await crash.configure()
    await crash.killed_ingest(crash.made(), legacy=True)


async def over_messages(crash: Crash) -> None:
    await crash.configure()
    await crash.killed_ingest(crash.made())


async def wished_again(crash: Crash) -> None:
    await crash.configure(redelivery="resend")
    message = crash.made()
    await crash.send(message)
    await crash.until("status = 'COMPLETED'")
    message["data"] |= {"deptCd": "IM"}
    await crash.killed_ingest(message)


async def dead_again(crash: Crash) -> None:
    await crash.configure(order="none", tries=1)
    message = crash.made(formCd=UNKNOWN)
    await crash.send(message)
    await crash.until("report_state = 'SENT'")
    await crash.mend()
    await crash.configure(redelivery="resend", tries=1)
    # Under another subject: the one that comes now has its place before, and the dead one's is made by its lock.
    await crash.killed_ingest(message | {"partitionkey": f"{message['partitionkey']}-moved"})


async def direct(crash: Crash) -> None:
    await crash.configure(mode="direct")
    await crash.killed_ingest(crash.made())


async def direct_without_order(crash: Crash) -> None:
    await crash.configure(mode="direct", order="none")
    await crash.killed_ingest(crash.made())


async def direct_by_number(crash: Crash) -> None:
    await crash.configure(mode="direct", order="sequence")
    first = crash.made(1)
    await crash.send(first, crash.made(3, patno=first["partitionkey"]))  # which waits for the one between
    await crash.killed_ingest(crash.made(2, patno=first["partitionkey"]))


async def redriven(crash: Crash) -> None:
    await crash.configure(tries=1)
    message = crash.made(formCd=UNKNOWN)
    await crash.send(message)
    await crash.until("report_state = 'SENT'")
    await crash.mend()
    await crash.killed(f"redrive {key(message)}")
    with suppress(InboxError):
        await redrive(crash.stack.database, key(message))


async def redriven_before_it_was_told(crash: Crash) -> None:
    await crash.configure(tries=1)
    message = crash.made(formCd=UNKNOWN)
    await crash.send(message)
    await discard(crash.stack.database, crash.stack.settings, key(message), "a mistake")
    await crash.mend()
    await crash.killed(f"redrive {key(message)}")
    with suppress(InboxError):
        await redrive(crash.stack.database, key(message))


async def discarded(crash: Crash) -> None:
    await crash.configure()
    first = crash.made()
    await crash.send(first, crash.made(patno=first["partitionkey"]))
    await crash.killed(f"discard {key(first)} --reason mistake")
    with suppress(InboxError):
        await discard(crash.stack.database, crash.stack.settings, key(first), "mistake")


async def parked(crash: Crash) -> dict:
    await crash.configure(on_dead="park", tries=1)
    first = crash.made(formCd=UNKNOWN)
    await crash.send(first, crash.made(patno=first["partitionkey"]))
    await crash.until("parked AND report_state = 'SENT' OR held_since IS NOT NULL")
    return first


async def parked_is_discarded(crash: Crash) -> None:
    first = await parked(crash)
    await crash.killed(f"discard {key(first)} --reason mistake")
    with suppress(InboxError):
        await discard(crash.stack.database, crash.stack.settings, key(first), "mistake")


async def sent_again(crash: Crash) -> None:
    await crash.configure(report={"url": f"{crash.stack.hospital.url}/reports", "give_up_after": 1})
    await crash.stack.hospital.control(reports=[500] * 50)
    message = crash.made(sendDt=LATE)
    await crash.send(message)
    await crash.until("report_state = 'GIVEN_UP'")
    await crash.stack.hospital.control(reports=[])
    await crash.configure()
    await crash.killed(f"report {key(message)}")
    with suppress(InboxError):
        await send_again(crash.stack.database, key(message))


async def parked_is_released(crash: Crash) -> None:
    first = await parked(crash)
    await crash.killed(f"release {key(first)}")
    with suppress(InboxError):
        await release(crash.stack.database, crash.stack.settings, key(first))


async def gap_is_accepted(crash: Crash) -> None:
    await crash.configure(order="sequence")
    first = crash.made(1)
    last = crash.made(3, patno=first["partitionkey"])
    await crash.send(first, last)
    await crash.until("status = 'COMPLETED' OR held_since IS NOT NULL AND held_behind IS NULL")
    await crash.killed(f"release {key(last)}")
    with suppress(InboxError):
        await release(crash.stack.database, crash.stack.settings, key(last))


async def dead_of_a_gap_is_released(crash: Crash) -> None:
    await crash.configure(order="sequence", gap_timeout=0.01)
    first = crash.made(1)
    last = crash.made(3, patno=first["partitionkey"])
    await crash.send(first, last)
    await crash.until("status = 'COMPLETED' OR report_state = 'SENT'")
    await crash.killed(f"release {key(last)}")
    with suppress(InboxError):
        await release(crash.stack.database, crash.stack.settings, key(last))


DOORS = (
    Scenario("a message over the old door", (*both("accept"), *both("answer /legacy/survey-send")), over_the_old_door),
    Scenario("a message over /messages", both("answer /messages"), over_messages),
    Scenario("a redelivery that is a wish", (*both("redeliver"), *ends(ACCEPT)), wished_again),
    Scenario(
        "a redelivery of a dead one, whose source has order since",
        (*both("lock dead subject"), "after:redeliver"),
        dead_again,
    ),
    Scenario(
        "a message in direct mode",
        (*both("make place", "put, order arrival", "finish"), *ends(DIRECT)),
        direct,
    ),
    Scenario("a message in direct mode, without order", both("put, order none"), direct_without_order),
    Scenario(
        "a number that fills a gap, in direct mode",
        (*both("put, order sequence"), "after:release by sequence", *ends(DIRECT)),
        direct_by_number,
    ),
    *DISPATCHED,
)
COMMANDS = (
    Scenario("inbox redrive", (*both("redrive"), *ends("inbox.burial.redrive")), redriven),
    Scenario("inbox redrive before the report", ("after:redrive",), redriven_before_it_was_told),
    Scenario("inbox report", (*both("send again"), *ends("inbox.burial.send_again")), sent_again),
    Scenario("inbox discard", (*both("bury"), *ends(BURY)), discarded),
    Scenario("inbox discard of a parked one", ends(BURY), parked_is_discarded),
    Scenario("inbox release of a parked one", (*both("unpark"), *ends(RELEASE)), parked_is_released),
    Scenario("inbox release behind a gap", (*both("accept gap", "make due"), *ends(RELEASE)), gap_is_accepted),
    Scenario("inbox release of one that died of a gap", ends(RELEASE), dead_of_a_gap_is_released),
)
