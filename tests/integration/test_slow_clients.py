"""What a client can do to a connection: long heads, slow bytes, no bytes, answers that it does not take."""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from deploy.dev.postgres import Postgres
from inbox.ingest.http import READ_AWAY
from inbox.ingest.protocol import MAX_HEAD, MAX_PIPELINED
from tests.conftest import TEMPLATE
from tests.integration.bad_input import MEDIA_TYPES, MESSAGES, good
from tests.support import raw
from tests.support.serving import Served, serving
from tests.support.stack import TOKENS

PATIENCE = 0.5  # seconds
HEADERS = [
    (b"Content-Type", MEDIA_TYPES[MESSAGES].encode()),
    (b"Authorization", b"Bearer " + TOKENS["hospital"].encode()),
]
Sends = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def served(postgres: Postgres) -> Iterator[Served]:
    """One ingest for the module, that is soon out of patience."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE slow TEMPLATE {}").format(sql.Identifier(TEMPLATE)))
    url = f"{postgres.url.rpartition('/')[0]}/slow"
    with serving(url, "slow", timeouts={"request": PATIENCE}) as running:
        yield running


def assert_goes_on(served: Served) -> None:
    headers = {name.decode(): value.decode() for name, value in HEADERS}
    assert served.http.post(MESSAGES, content=good(MESSAGES), headers=headers).status_code == 202
    assert served.halves() == 0


def until_dropped(served: Served, connection: socket.socket, act: Callable[[], object], limit: float = 30) -> None:
    """Go on with ``act`` until the server has let go of the connection; ``limit`` in seconds."""
    client = connection.getsockname()
    end = time.monotonic() + limit
    while served.holds(client):
        assert time.monotonic() < end, "the server keeps the connection"
        act()


def problem(answer: bytes) -> tuple[int, str]:
    """Return status and kind of an answer that ends its connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head.lower()
    document = json.loads(body)
    assert head.startswith(f"HTTP/1.1 {document['status']} ".encode())
    return document["status"], document["type"].rpartition(":")[2]


# Heads


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(lambda size: b"GET /" + b"a" * size, id="path"),
        pytest.param(lambda size: b"GET /healthz HTTP/1.1\r\nX: " + b"a" * size, id="one header"),
        pytest.param(lambda size: b"GET /healthz HTTP/1.1\r\n" + b"X: aaaa\r\n" * (size // 9), id="many headers"),
        pytest.param(lambda size: b"GET /healthz HTTP/1.1\r\n" + b"X" * size, id="a header's name"),
        pytest.param(lambda size: b"\r\n" * (size // 2), id="empty lines"),
    ],
)
@pytest.mark.parametrize("size", [2 * MAX_HEAD, 10 * 1024 * 1024])
def test_a_long_head_is_refused_before_it_ends(served: Served, head: Callable[[int], bytes], size: int) -> None:
    with raw.connect(served.address) as connection:
        raw.send(connection, head(size))
        answer = raw.ended(connection)
    # Closing on a client that still sends may take the answer away from it.
    assert answer == b"" or problem(answer) in [(431, "head-too-large"), (400, "unreadable")]
    assert_goes_on(served)


def test_a_head_of_ten_mebibytes_that_ends_is_refused(served: Served) -> None:
    sent = raw.request(MESSAGES.encode(), [*HEADERS, (b"X", b"a" * 10 * 1024 * 1024)], good(MESSAGES))
    before = served.everything()
    assert raw.exchange(served.address, sent) in (431, None)
    assert served.everything() == before


@pytest.mark.parametrize(("size", "status"), [(MAX_HEAD - 1024, 202), (MAX_HEAD, 431)])
def test_the_limit_of_a_head(served: Served, size: int, status: int) -> None:
    sent = raw.request(MESSAGES.encode(), [*HEADERS, (b"X", b"a" * size)], good(MESSAGES))
    assert raw.exchange(served.address, sent) == status


def test_trailers_have_that_limit_too(served: Served) -> None:
    head = raw.request(MESSAGES.encode(), [*HEADERS, (b"Transfer-Encoding", b"chunked")])
    head = head.replace(b"Content-Length: 0\r\n", b"")
    with raw.connect(served.address) as connection:
        raw.send(connection, head + b"2\r\n{}\r\n0\r\nX: " + b"a" * 10 * MAX_HEAD)
        answer = raw.ended(connection)
    assert answer == b"" or problem(answer) == (431, "head-too-large")
    assert_goes_on(served)


def test_what_is_not_http_is_a_problem_document(served: Served) -> None:
    with raw.connect(served.address) as connection:
        raw.send(connection, b"\x16\x03\x01 not HTTP\r\n\r\n")
        assert problem(raw.ended(connection)) == (400, "unreadable")


# Slow bytes


def trickle(data: bytes, piece: bytes) -> Sends:
    """Send ``data``, and then ``piece`` again and again until the server has enough."""

    def send(connection: socket.socket) -> None:
        connection.sendall(data)
        stop = threading.Event()
        connection.settimeout(0.02)
        while not stop.is_set():
            try:
                connection.sendall(piece)
                if not connection.recv(1, socket.MSG_PEEK):
                    return
                stop.set()
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                return
        connection.settimeout(30)

    return send


WHOLE = raw.request(MESSAGES.encode(), HEADERS, good(MESSAGES))
HEAD = WHOLE[: WHOLE.index(b"\r\n\r\n") + 4]
CHUNKED = raw.request(MESSAGES.encode(), [*HEADERS, (b"Transfer-Encoding", b"chunked")]).replace(
    b"Content-Length: 0\r\n", b""
)


@pytest.mark.parametrize(
    "sends",
    [
        pytest.param(lambda _: None, id="nothing"),
        pytest.param(lambda connection: connection.sendall(WHOLE[:40]), id="half a head"),
        pytest.param(lambda connection: connection.sendall(WHOLE[:-1]), id="all but a byte"),
        pytest.param(trickle(WHOLE[:40], b"a"), id="a head bytewise"),
        pytest.param(trickle(HEAD, b" "), id="a body bytewise"),
        pytest.param(trickle(CHUNKED, b"1\r\n \r\n"), id="a body in chunks of a byte"),
        pytest.param(trickle(b"", b"\r\n"), id="empty lines"),
    ],
)
def test_a_request_that_does_not_arrive_ends(served: Served, sends: Sends) -> None:
    before = served.everything()
    with raw.connect(served.address) as connection:
        sends(connection)
        assert problem(raw.ended(connection)) == (408, "too-slow")
    assert served.everything() == before
    assert_goes_on(served)


def test_what_follows_an_early_answer_must_arrive_too(served: Served) -> None:
    """401 is answered before the body came; bytes of it must not keep the connection for ever."""
    refused = HEAD.replace(b"Bearer ", b"Bearer no-").replace(b"Content-Length: ", b"Content-Length: 9")
    with raw.connect(served.address) as connection:
        connection.sendall(refused)
        assert raw.status(connection) == 401
        until_dropped(served, connection, lambda: raw.send(connection, b" "))
    assert_goes_on(served)


def test_a_second_request_on_a_connection_has_its_own_time(served: Served) -> None:
    with raw.connect(served.address) as connection:
        for _ in range(3):
            connection.sendall(raw.request(MESSAGES.encode(), HEADERS, good(MESSAGES)))
            assert raw.status(connection) == 202
        connection.sendall(WHOLE[:40])
        assert problem(raw.ended(connection)) == (408, "too-slow")


def test_a_slow_body_that_keeps_a_rate_is_taken(served: Served) -> None:
    """Each KiB gives another second, so a long body may take longer than a short one."""
    body = good(MESSAGES) + b" " * 200_000
    sent = raw.request(MESSAGES.encode(), HEADERS, body)
    with raw.connect(served.address) as connection:
        connection.sendall(sent[:-10])
        connection.settimeout(3 * PATIENCE)
        with pytest.raises(TimeoutError):
            connection.recv(1)  # three times as long as a short one may take, and the server still waits
        connection.settimeout(30)
        connection.sendall(sent[-10:])
        assert raw.status(connection) == 202


def test_answers_that_are_not_taken_end_the_connection(served: Served) -> None:
    """How much the kernels keep for a client that does not read is theirs to say: the transport's word is given here."""
    with raw.connect(served.address) as connection:
        connection.sendall(raw.request(b"/healthz", [], method=b"GET"))
        assert raw.status(connection) == 200
        served.tell(connection.getsockname(), "pause_writing")
        # Sooner than the 5 s that uvicorn gives a connection between two requests.
        until_dropped(served, connection, lambda: served.http.get("/healthz"), limit=4)


def test_answers_that_are_taken_late_are_no_fault(served: Served) -> None:
    with raw.connect(served.address) as connection:
        for _ in range(2):
            connection.sendall(raw.request(b"/healthz", [], method=b"GET"))
            assert raw.status(connection) == 200
            served.tell(connection.getsockname(), "pause_writing")
            served.tell(connection.getsockname(), "resume_writing")


def test_a_few_requests_in_one_packet_are_answered_in_turn(served: Served) -> None:
    with raw.connect(served.address) as connection:
        asks = [raw.request(path, [], method=b"GET") for path in (b"/healthz", b"/backlog")]
        connection.sendall(b"".join(asks * (MAX_PIPELINED // 2)) + WHOLE[:40])
        answers = raw.ended(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"401"] * (MAX_PIPELINED // 2) + [b"408"]


def test_requests_are_not_queued_without_end(served: Served) -> None:
    with raw.connect(served.address) as connection:
        raw.send(connection, raw.request(b"/healthz", [], method=b"GET") * 100_000)
        assert raw.ended(connection).count(b"HTTP/1.1 ") < 100_000
    assert_goes_on(served)


# Other uses of a connection


def test_a_body_that_is_not_read_away_ends_the_connection(served: Served) -> None:
    head = raw.request(MESSAGES.encode(), HEADERS).replace(
        b"Content-Length: 0", b"Content-Length: " + str(2 * READ_AWAY).encode()
    )
    with raw.connect(served.address) as connection:
        raw.send(connection, head + b" " * 2 * READ_AWAY)
        answer = raw.ended(connection)
    assert answer == b"" or problem(answer) == (413, "too-large")
    assert_goes_on(served)


def test_an_offer_of_http_2_is_passed_over(served: Served) -> None:
    """Java's client makes one with each first request."""
    offer = [
        (b"Connection", b"Upgrade, HTTP2-Settings"),
        (b"Upgrade", b"h2c"),
        (b"HTTP2-Settings", b"AAEAAEAAAAIAAAAB"),
    ]
    with raw.connect(served.address) as connection:
        connection.sendall(raw.request(MESSAGES.encode(), [*HEADERS, *offer], good(MESSAGES)))
        assert raw.status(connection) == 202
        connection.sendall(raw.request(MESSAGES.encode(), HEADERS, good(MESSAGES)))
        assert raw.status(connection) == 202


@pytest.mark.parametrize(
    "first", [b"Content-Length: 4\r\nTransfer-Encoding: chunked", b"Content-Length: 4\r\nContent-Length: 5"]
)
def test_two_lengths_are_refused(served: Served, first: bytes) -> None:
    """Two readers would see two requests in it."""
    sent = HEAD.partition(b"Content-Length")[0] + first + b"\r\n\r\n0\r\n\r\n"
    with raw.connect(served.address) as connection:
        raw.send(connection, sent)
        assert problem(raw.ended(connection)) == (400, "unreadable")


def test_a_client_that_leaves_is_no_error_of_ours(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        with raw.connect(served.address) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client = connection.getsockname()
            connection.sendall((WHOLE + raw.request(b"/openapi.json", [], method=b"GET")) * 20)
        end = time.monotonic() + 30
        while served.holds(client):
            assert time.monotonic() < end
    assert_goes_on(served)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
