"""A child that ends is started again, on the same ports, and costs no message anything (spec sections 4, 7, 15, 17)."""

import os
import signal

import httpx
import pytest

from tests.acceptance.client import Client, survey, surveys
from tests.acceptance.launcher import Launcher, running, within

FORM = {"group": "G-1", "distributed": True}


def without_pids(ready: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in ready.items() if key != "pids"}


@pytest.mark.parametrize("name", ["ingest", "worker", "hospital", "temporal", "postgres"])
def test_a_killed_child_is_back_on_its_ports_and_no_accepted_message_is_lost_or_doubled(
    stack: Launcher, client: Client, name: str
) -> None:
    old = stack.pid(name)
    others = {n: stack.pid(n) for n in stack.ready["pids"] if n != name}
    ids = [client.send(message) for message in surveys(6)]
    os.kill(old, signal.SIGKILL)
    ids += [client.send(message) for message in surveys(6)]
    new = stack.replaced(name, old)
    ids += [client.send(message) for message in surveys(3)]
    client.all_completed(ids)
    assert without_pids(stack.ready) == without_pids(client.ready)
    assert {n: stack.pid(n) for n in stack.ready["pids"]} == others | {name: new}
    assert all(map(running, [new, *others.values()]))


def test_while_postgres_is_away_intake_answers_503_and_what_it_accepts_has_a_row(
    stack: Launcher, client: Client
) -> None:
    postgres = stack.pid("postgres")
    messages = surveys(12)
    answers: dict[str, httpx.Response] = {}

    def refused() -> bool:
        message = messages[len(answers)]
        answers[message["srvyDrawupNo"]] = answer = client.offer(message)
        return answer.status_code == 503 and len(answers) >= 3

    stack.signal(signal.SIGSTOP)  # or it would start another one at once
    try:
        os.kill(postgres, signal.SIGKILL)
        within(60, refused)
        not_ready = client.get(f"{client.ready['ingest']}/readyz")
        alive = client.get(f"{client.ready['ingest']}/healthz")
    finally:
        stack.signal(signal.SIGCONT)
    assert (not_ready.status_code, alive.status_code) == (503, 200)
    stack.replaced("postgres", postgres)
    within(60, lambda: client.get(f"{client.ready['ingest']}/readyz").status_code == 200)
    for answer in answers.values():
        if answer.status_code != 200:
            assert (answer.status_code, "X-Result" in answer.headers) == (503, False)
            assert int(answer.headers["Retry-After"]) >= 1
    accepted = [i for i, answer in answers.items() if answer.status_code == 200]
    assert set(client.rows(accepted)) == set(accepted)
    client.all_completed([client.send(message) for message in messages])


def test_a_worker_that_is_told_to_stop_costs_no_running_message_a_try(stack: Launcher, client: Client) -> None:
    forms = [f"P-R{n}" for n in range(4)]
    known = {form: FORM | {"surveyNo": form} for form in (*forms, "P-EQ5D")}
    client.control(delays=True, forms=known)  # each form's first look-ups take about a second
    ids: list[str] = []
    for form in forms:
        worker = stack.pid("worker")
        batch = [client.send(message) for message in surveys(10, form)]
        client.in_flight(batch)
        os.kill(worker, signal.SIGTERM)
        stack.replaced("worker", worker)
        ids += batch
    rows = client.all_completed(ids)
    assert {i: row["tries"] for i, row in rows.items()} == dict.fromkeys(ids, 1)
    lines = client.sql(
        "SELECT a.* FROM inbox.attempt a JOIN inbox.message m ON m.id = a.message WHERE m.message_id = ANY(%s)", ids
    )
    assert lines == []


def test_ingest_that_is_told_to_stop_loses_no_start_of_what_it_accepted(stack: Launcher, client: Client) -> None:
    client.control(delays=False)
    ids: list[str] = []
    for _ in range(5):
        ingest = stack.pid("ingest")
        ids += [client.send(message) for message in surveys(5)]
        os.kill(ingest, signal.SIGTERM)  # most likely in the middle of a round of dispatch
        stack.replaced("ingest", ingest)
        ids.append(client.send(survey()))
    rows = client.all_completed(ids)
    # One whose start was lost waits for the end of its lease, and starts a second time.
    assert {i: row["starts"] for i, row in rows.items() if row["starts"] != 1} == {}


def test_all_children_killed_at_once_are_back_and_every_accepted_message_completes(
    stack: Launcher, client: Client
) -> None:
    old = {name: stack.pid(name) for name in stack.ready["pids"]}
    client.control(delays=True, forms={"P-EQ5D": FORM | {"surveyNo": "P-EQ5D"}, "P-GAD7": FORM | {"surveyNo": "P-ALL"}})
    ids = [client.send(message) for message in surveys(10, "P-GAD7")]
    client.in_flight(ids)
    for pid in old.values():
        os.kill(pid, signal.SIGKILL)
    ids += [client.send(message) for message in surveys(3)]
    for name, pid in old.items():
        stack.replaced(name, pid)
    client.all_completed(ids)
    assert without_pids(stack.ready) == without_pids(client.ready)
