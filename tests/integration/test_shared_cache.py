"""The look-up cache on a real server: what it shares, what it never keeps, and every fault a warning and a direct call."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from handlers.survey_send.clients import TIMEOUT
from inbox.cache import HandlerLookups, LookupCache
from inbox.errors import BusinessError, SettingsError
from inbox.logs import LimitedLog
from inbox.settings import Settings
from inbox.shared_cache import PATIENCE, PAUSE, Patience, SharedCache, open_shared_cache
from inbox.timeouts import Timeouts
from tests.support.looking import Service
from tests.support.processes import ROOT, free_port
from tests.support.valkey import Valkey
from tests.support.waiting import eventually

SECRET = "PLANTED-secret"
# A loaded machine is no reason for a direct call, except where that is the test.
SLOW = Patience(limit=20, rest=60, lock=60, wait=60)
NAME = "inbox-lookup:inbox:handler:thing:1:k"
LOCK = "inbox-lookup-lock:inbox:handler:thing:1:k"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Valkey]:
    """A server that this test may stop."""
    async with Valkey(tmp_path) as running:
        yield running


@pytest.fixture
async def shared() -> AsyncIterator[Callable[..., SharedCache]]:
    """Open shared caches as processes do; each has a connection of its own."""
    async with AsyncExitStack() as opened:

        def open_one(url: str, patience: Patience = SLOW) -> SharedCache:
            one = open_shared_cache(Settings(DATABASE_URL="postgresql://h/d", redis_url=url))
            assert one
            one._patience = patience
            opened.push_async_callback(one.aclose)
            return one

        yield open_one


def cached(shared: SharedCache, look_up: Any, value: Any = str, **options: Any) -> LookupCache[Any]:
    return HandlerLookups("inbox", "handler", shared).cache("thing", value, look_up, **options)


Open = Callable[..., SharedCache]


@dataclass(frozen=True)
class Thing:
    code: str
    number: int


# What it shares


async def test_what_one_process_looked_up_another_finds(server: Valkey, shared: Open) -> None:
    one, two = Service(Thing("가", 1), at_once=True), Service(at_once=True)
    assert await cached(shared(server.url), one, Thing).get("k") == Thing("가", 1)
    for options in ("", "?decode_responses=true", "?protocol=3"):
        assert await cached(shared(server.url + options), two, Thing).get("k") == Thing("가", 1)
    assert (one.calls, two.calls) == (["k"], [])
    assert await server.kept() == {NAME: b'{"code":"\xea\xb0\x80","number":1}'}
    assert 0 < await server.client.pttl(NAME) <= 300_000


async def test_a_span_says_whether_a_cache_had_it_whichever(
    server: Valkey, shared: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr("inbox.spans.tracer", provider.get_tracer("test"))
    one, two = (cached(shared(server.url), Service(at_once=True)) for _ in range(2))
    for cache in (one, one, two, two):
        await cache.get("k")
    hits = [(span.name, (span.attributes or {})["cache.hit"]) for span in spans.get_finished_spans()]
    assert hits == [("look up thing", hit) for hit in (False, True, True, True)]


async def test_an_empty_list_is_kept(server: Valkey, shared: Open) -> None:
    one, two = Service([], at_once=True), Service(at_once=True)
    assert await cached(shared(server.url), one, list[str]).get("k") == []
    assert await cached(shared(server.url), two, list[str]).get("k") == []
    assert (one.calls, two.calls) == (["k"], [])


@pytest.mark.parametrize("error", [BusinessError("MISSING", "reason"), LookupError("bug"), TimeoutError()])
async def test_what_was_raised_is_not_kept_and_holds_nobody(server: Valkey, shared: Open, error: Exception) -> None:
    one, two = Service(error, at_once=True), Service("registered meanwhile", at_once=True)
    with pytest.raises(type(error)):
        await cached(shared(server.url), one).get("k")
    assert await server.client.dbsize() == 0
    assert await cached(shared(server.url), two).get("k") == "registered meanwhile"


async def test_handlers_kinds_versions_inboxes_and_keys_are_apart(server: Valkey, shared: Open) -> None:
    connection = shared(server.url)
    service = Service(at_once=True)
    odd = "\ud800", "\ud801", "a:1", "a%3A1", "한", ""
    for inbox in ("a", "b"):
        for handler in ("c", "d:e"):
            for kind in ("f", "e:f"):
                for version in (1, 2):
                    lookups = HandlerLookups(inbox, handler, connection)
                    cache = lookups.cache(kind, str, service, version=version)  # type: ignore[arg-type]
                    for key in odd:
                        await cache.get(key)
    assert len(service.calls) == len(await server.kept()) == 2**4 * len(odd)


async def test_a_process_that_finds_another_looking_waits_for_it(server: Valkey, shared: Open) -> None:
    one, two = Service("from one"), Service(at_once=True)
    first = asyncio.create_task(cached(shared(server.url), one).get("k"))
    await one.asked()
    assert 0 < await server.client.pttl(LOCK) <= SLOW.lock * 1000
    second = asyncio.create_task(cached(shared(server.url), two).get("k"))
    await eventually(server.asking, lambda connections: connections == 2)
    one.may_answer.set()
    assert [await first, await second] == ["from one"] * 2
    assert two.calls == []
    assert not await server.client.exists(LOCK)


async def test_nobody_waits_for_longer_than_its_patience(server: Valkey, shared: Open) -> None:
    one, two = Service("from one"), Service("from two", at_once=True)
    first = asyncio.create_task(cached(shared(server.url), one).get("k"))
    await one.asked()
    impatient = Patience(limit=20, lock=60, wait=0.2)
    assert await cached(shared(server.url, impatient), two).get("k") == "from two"
    assert await server.kept() == {}, "it is the first one's to keep"
    one.may_answer.set()
    await first
    assert await server.kept() == {NAME: b'"from one"'}


async def test_a_lock_that_ran_out_is_taken_over_and_the_newer_value_is_kept(server: Valkey, shared: Open) -> None:
    one, two = Service("old"), Service("new")
    brief = Patience(limit=20, lock=0.05, wait=60)
    first = asyncio.create_task(cached(shared(server.url, brief), one).get("k"))
    await one.asked()
    second = asyncio.create_task(cached(shared(server.url), two).get("k"))
    await two.asked()
    one.may_answer.set()
    assert await first == "old"
    assert await server.kept() == {}
    assert await server.client.exists(LOCK), "the second one still holds it"
    two.may_answer.set()
    assert await second == "new"
    assert await server.kept() == {NAME: b'"new"'}


async def test_a_call_that_outlasts_its_lock_is_kept_where_nobody_took_over(server: Valkey, shared: Open) -> None:
    one = Service()
    asking = asyncio.create_task(cached(shared(server.url, Patience(limit=20, lock=0.05)), one).get("k"))
    await one.asked()
    await eventually(lambda: server.client.exists(LOCK), lambda there: not there)
    one.may_answer.set()
    await asking
    assert await server.kept() == {NAME: b'"value"'}


async def test_the_time_to_live_is_not_doubled_by_the_process_in_front(server: Valkey, shared: Open) -> None:
    service = Service("new", at_once=True)
    cache = cached(shared(server.url), service, ttl=300)
    await server.client.set(NAME, b'"old"', px=3000)
    assert await cache.get("k") == "old"
    await eventually(lambda: cache.get("k"), lambda value: value == "new")  # not only after 300 s


async def test_a_longer_life_in_the_server_does_not_outlast_the_processes_own(server: Valkey, shared: Open) -> None:
    service = Service(at_once=True)
    cache = cached(shared(server.url), service, ttl=0.1)
    await server.client.set(NAME, b'"old"', px=3_600_000)
    assert await cache.get("k") == "old"
    await server.client.set(NAME, b'"new"', px=3_600_000)
    await eventually(lambda: cache.get("k"), lambda value: value == "new")


@pytest.mark.parametrize("garbage", [b"", b"\x80\x04K\x07.", b"{", b'{"code":"a"}', b"null", b"[" * 10_000])
async def test_what_cannot_be_read_is_a_miss_and_replaced(
    server: Valkey, shared: Open, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await server.client.set(NAME, garbage, px=3_600_000)
    service = Service(Thing("a", 1), at_once=True)
    assert await cached(shared(server.url), service, Thing).get("k") == Thing("a", 1)
    assert service.calls == ["k"]
    assert await server.kept() == {NAME: b'{"code":"a","number":1}'}
    assert caplog.records == []


async def test_what_is_no_text_or_lives_for_ever_is_a_miss_and_replaced(server: Valkey, shared: Open) -> None:
    await server.client.rpush(NAME, "a", "b")
    assert await cached(shared(server.url), Service(at_once=True)).get("k") == "value"
    assert await server.kept() == {NAME: b'"value"'}
    await server.client.set(NAME, b'"for ever"')
    assert await cached(shared(server.url), Service(at_once=True)).get("k") == "value"
    assert 0 < await server.client.pttl(NAME) <= 300_000


async def test_a_value_of_another_type_than_was_said_is_returned_and_not_shared(
    server: Valkey, shared: Open, caplog: pytest.LogCaptureFixture
) -> None:
    odd = object()
    assert await cached(shared(server.url), Service(odd, at_once=True)).get("k") is odd
    assert await server.client.dbsize() == 0
    assert [record.getMessage() for record in caplog.records] == [
        "a value cannot be shared: PydanticSerializationError"
    ]


def test_a_try_has_time_for_all_that_survey_send_may_wait_for() -> None:
    lookup = PATIENCE.wait + 2 * PATIENCE.limit + 2 * PAUSE + TIMEOUT
    assert 2 * lookup + TIMEOUT < Timeouts().start_to_close
    assert PATIENCE.lock < PATIENCE.wait


async def test_the_rights_that_operators_are_told_are_enough(server: Valkey, shared: Open) -> None:
    (told,) = re.findall("^ACL SETUSER inbox .*", (ROOT / "docs/operators.md").read_text(), re.MULTILINE)
    await server.client.execute_command(*told.split())
    limited = server.url.replace("redis://", "redis://inbox:password@").removesuffix("0") + "1"
    for service in (Service(at_once=True), Service("another", at_once=True)):
        assert await cached(shared(limited), service).get("k") == "value"


# Faults of the server


@asynccontextmanager
async def real(folder: Path, *options: str, **more: str) -> AsyncIterator[Valkey]:
    async with Valkey(folder, *options, **more) as running:
        yield running


@asynccontextmanager
async def refusing(_: Path) -> AsyncIterator[str]:
    yield f"redis://:{SECRET}@127.0.0.1:{free_port()}/0"


@asynccontextmanager
async def hanging(folder: Path) -> AsyncIterator[str]:
    async with real(folder, password=SECRET) as running:
        running.stop()
        yield running.url


@asynccontextmanager
async def wrong_password(folder: Path) -> AsyncIterator[str]:
    async with real(folder, password="another") as running:
        yield running.url.replace("another", SECRET)


@asynccontextmanager
async def no_password(folder: Path) -> AsyncIterator[str]:
    async with real(folder, password="another") as running:
        yield running.url.replace(":another@", "")


@asynccontextmanager
async def out_of_memory(folder: Path) -> AsyncIterator[str]:
    async with real(folder, "--maxmemory", "1", "--maxmemory-policy", "noeviction") as running:
        yield running.url


@asynccontextmanager
async def replica(folder: Path) -> AsyncIterator[str]:
    async with real(folder, "--replicaof", "127.0.0.1", str(free_port())) as running:
        yield running.url


@asynccontextmanager
async def stale_replica(folder: Path) -> AsyncIterator[str]:
    options = ("--replicaof", "127.0.0.1", str(free_port()), "--replica-serve-stale-data", "no")
    async with real(folder, *options) as running:
        yield running.url


@asynccontextmanager
async def without_scripts(folder: Path) -> AsyncIterator[str]:
    async with real(folder, "--rename-command", "EVAL", "") as running:
        yield running.url


@asynccontextmanager
async def without_tls(folder: Path) -> AsyncIterator[str]:
    async with real(folder, password=SECRET) as running:
        yield running.url.replace("redis://", "rediss://")


def fake(*answers: bytes, pause: float = 0, reset: bool = False) -> Callable[[Path], Any]:
    """Return what serves ``answers`` to whoever connects, piece by piece, over and over."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65536):
                for answer in answers:
                    writer.write(answer)
                    await writer.drain()
                    await asyncio.sleep(pause)
                if reset:
                    break
        except OSError:
            pass
        if reset:
            writer.transport.abort()
        writer.close()

    @asynccontextmanager
    async def running(_: Path) -> AsyncIterator[str]:
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with listening:
            yield f"redis://:{SECRET}@127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"

    return running


def encrypted(serve: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return what serves the same to a client that begins with TLS."""

    @asynccontextmanager
    async def running(folder: Path) -> AsyncIterator[str]:
        async with serve(folder) as url:
            yield url.replace("redis://", "rediss://")

    return running


LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "refused": (refusing, "ConnectionError of ConnectionRefusedError"),
    "hanging": (hanging, "TimeoutError"),
    "wrong password": (wrong_password, "AuthenticationError"),
    "no password": (no_password, "AuthenticationError"),
    "out of memory": (out_of_memory, "OutOfMemoryError"),
    "a replica": (replica, "ReadOnlyError"),
    "a replica without its master": (stale_replica, "MasterDownError"),
    "scripts forbidden": (without_scripts, "ResponseError"),
    "no TLS there": (without_tls, "TimeoutError"),  # it waits for the rest of what it takes for a command
    "TLS refused": (encrypted(fake(b"\x15\x03\x01\x00\x02\x02\x28")), "ConnectionError of SSLError"),
    "reset": (fake(reset=True), "ConnectionError"),
    "loading": (fake(LOADING), "BusyLoadingError"),
    "another protocol": (fake(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "InvalidResponse"),
    "dripping": (fake(*[b"$", *[b"1"] * 1000], pause=0.05), "TimeoutError"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_one_warning_and_a_direct_call(
    fault: str, tmp_path: Path, shared: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    broken, said = FAULTS[fault]
    service = Service(at_once=True)
    async with broken(tmp_path) as url:
        # As it is by default, but for the rest: the second look-up finds the server left alone.
        connection = shared(url, Patience(limit=PATIENCE.limit if said == "TimeoutError" else 20, rest=600))
        connection._log = LimitedLog(logging.getLogger("inbox.shared_cache"), interval=600)
        cache = cached(connection, service)
        async with asyncio.timeout(30):
            burst = await asyncio.gather(*(cache.get(f"k{number}") for number in range(10)))
            later = await cache.get("later")
        assert [*burst, later] == ["value"] * 11
        assert sorted(service.calls) == sorted([*(f"k{number}" for number in range(10)), "later"])
        await connection.aclose()
    warnings = [record for record in caplog.records if record.name == "inbox.shared_cache"]
    assert [record.levelname for record in warnings] == ["WARNING"]
    assert warnings[0].getMessage().startswith(f"the shared look-up cache is not used: {said}")
    texts = [record.getMessage() for record in caplog.records if record.name != "asyncio"]
    assert not [text for text in texts if SECRET in text or "127.0.0.1" in text or "redis://" in text]


async def test_a_server_at_fault_is_left_alone_for_a_while(shared: Open) -> None:
    talks = 0

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal talks
        talks += 1
        writer.close()

    async with await asyncio.start_server(count, "127.0.0.1", 0) as listening:
        connection = shared(f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0")
        cache = cached(connection, Service(at_once=True))
        for number in range(20):
            assert await cache.get(f"k{number}") == "value"
        assert talks == 1
        connection._alone_until = 0.001  # its rest is over
        await asyncio.gather(*(cache.get(f"after {number}") for number in range(20)))
        assert talks == 2, "one of them tries"


async def test_a_server_that_comes_back_empty_is_used_again(server: Valkey, shared: Open) -> None:
    service = Service(at_once=True)
    cache = cached(shared(server.url, Patience(limit=20, rest=0.05)), service)
    await cache.get("before")
    server.kill()
    assert await cache.get("during") == "value"
    assert await cache.get("before") == "value"
    assert service.calls == ["before", "during"], "what this process had is still there"
    await server.start()
    numbers = iter(range(1000))

    async def kept() -> dict[str, bytes]:
        await cache.get(f"after {next(numbers)}")
        return await server.kept()

    await eventually(kept)


async def test_a_server_that_goes_on_after_a_stop_is_used_again(server: Valkey, shared: Open) -> None:
    cache = cached(shared(server.url, Patience(limit=0.2, rest=0.05)), Service(at_once=True))
    server.stop()
    assert await cache.get("during") == "value"
    server.go_on()
    numbers = iter(range(1000))

    async def kept() -> dict[str, bytes]:
        await cache.get(f"after {next(numbers)}")
        return await server.kept()

    await eventually(kept)


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_server_that_goes_while_one_looks_and_one_waits_fails_neither(
    server: Valkey, shared: Open, how: str
) -> None:
    patience = Patience(limit=2 if how == "stop" else 20, lock=60, wait=60)
    one, two = Service("from one"), Service("from two", at_once=True)
    first = asyncio.create_task(cached(shared(server.url, patience), one).get("k"))
    await one.asked()
    second = asyncio.create_task(cached(shared(server.url, patience), two).get("k"))
    await eventually(server.asking, lambda connections: connections == 2)
    getattr(server, how)()
    assert await second == "from two"
    one.may_answer.set()
    assert await first == "from one"


# The setting


@pytest.mark.parametrize(
    "query", ["speling=1", f"socket_timeout={SECRET}", f"ssl_cert_reqs={SECRET}", "max_connections=x"]
)
def test_an_option_that_the_client_does_not_know_is_refused_in_one_line(query: str) -> None:
    url = f"rediss://:{SECRET}@h/0?{query}"
    with pytest.raises(SettingsError, match=r"^INBOX_REDIS_URL: [^\n]+$") as refused:
        open_shared_cache(Settings(DATABASE_URL="postgresql://h/d", redis_url=url))
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__


def test_without_the_client_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(SettingsError, match=r"^INBOX_REDIS_URL: .*install the extra redis$"):
        open_shared_cache(Settings(DATABASE_URL="postgresql://h/d", redis_url="redis://h"))


def test_without_the_setting_there_is_none() -> None:
    assert open_shared_cache(Settings(DATABASE_URL="postgresql://h/d")) is None
