"""Whatever ends the launcher, nothing stays behind, and the data is there at the next start (spec section 15)."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.acceptance.client import Client, survey, surveys
from tests.acceptance.launcher import ROOT, START_LIMIT, Launcher, began, running, up, within


def test_two_stacks_run_side_by_side_and_each_stops_as_a_whole_and_alone(folder: Path) -> None:
    with Launcher(folder, data=folder / "one") as one, Launcher(folder, data=folder / "other") as other:
        ready = one.ready, other.ready
        for key in ("ingest", "temporal", "ui", "database", "hospital", "metrics", "operator_token"):
            assert ready[0][key] != ready[1][key], key
        with Client(one) as first, Client(other) as second:
            message = survey()
            first.all_completed([first.send(message)])
            assert second.record("hospital", message["srvyDrawupNo"]).status_code == 404
            assert first.get(f"{ready[0]['ingest']}/messages/hospital/x", "hospital").status_code == 404
            one.signal(signal.SIGTERM)
            assert one.ended() == 0, one.said
            one.nothing_left()
            assert all(running(other.pid(name)) for name in ready[1]["pids"])
            second.all_completed([second.send(message)])
        other.signal(signal.SIGINT)
        assert other.ended() == 0, other.said
        other.nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_starts_stops_what_is_there_by_then(folder: Path, number: signal.Signals) -> None:
    with Launcher(folder) as launcher:
        within(30, (launcher.data / "children.json").exists)
        assert len(launcher.processes()) > 1
        launcher.signal(number)
        assert launcher.ended() == 130, launcher.said
        launcher.nothing_left()
        assert not launcher.ready_path.exists()
        assert "Traceback" not in launcher.said


def test_after_a_kill_of_the_launcher_the_next_start_has_the_data_and_nothing_of_the_old_one_runs(folder: Path) -> None:
    with up(folder) as first, Client(first) as client:
        sent = surveys(3)
        done = [client.send(message) for message in sent]
        client.all_completed(done)
        open_ = [client.send(message) for message in surveys(10, "P-PHQ9")]  # its look-ups take a second
        client.in_flight(open_)
        left = {pid: began(pid) for pid in first.processes()}
        os.kill(first.pid("ingest"), signal.SIGSTOP)  # it can't end by itself
        first.signal(signal.SIGKILL)
        assert first.ended() == -signal.SIGKILL
        with up(folder, data=first.data) as second, Client(second) as again:
            assert {pid for pid, start in left.items() if start and began(pid) == start} == set()
            assert second.ready["tokens"] == first.ready["tokens"]
            again.all_completed([*done, *open_])
            assert again.offer(sent[0]).json()["duplicate"] is True
            again.send(survey())
            second.signal(signal.SIGTERM)
            assert second.ended() == 0, second.said
            second.nothing_left()


def test_a_terminal_that_is_closed_stops_everything_before_the_launcher_ends(folder: Path) -> None:
    ours, its = os.openpty()
    os.set_blocking(ours, False)

    def shown() -> bool:
        with suppress(BlockingIOError):
            os.read(ours, 65_536)  # or it would wait for us when the terminal's buffer is full
        return launcher.ready_path.exists()

    with Launcher(folder, terminal=its) as launcher:
        os.close(its)
        within(START_LIMIT, shown)
        os.close(ours)
        launcher.signal(signal.SIGHUP)
        assert launcher.ended() == 0
        assert launcher.processes() == []


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="make would make another .venv than the one tested here")
def test_make_up_that_is_interrupted_alone_leaves_nothing(folder: Path) -> None:
    with Launcher(folder, line=["make", "up"]) as launcher:
        assert launcher.ready["ingest"]
        launcher.signal(signal.SIGINT)  # to make alone, not to its group as a terminal does
        assert launcher.ended() == -signal.SIGINT  # as make ends when it is interrupted
        launcher.nothing_left()
        assert "Traceback" not in launcher.said
