"""The small decisions of a group of processes: restarts, outcomes of calls, the index, liveness, the board."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.errors import AlreadyExists, InvalidArgument, ModelFailed, Unavailable
from isochrone.multiprocess.coordination.control_outcome import failure
from isochrone.multiprocess.coordination.indexes import common_index
from isochrone.multiprocess.group.board import COORDINATOR, JOINED, LISTENING, READY, STARTED, Board
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.group.liveness import Liveness
from isochrone.multiprocess.group.sharing import memory
from isochrone.multiprocess.supervision.ports import PortInUse, check, reserve
from isochrone.multiprocess.supervision.restarts import Restarts


class TestRestarts:
    def test_a_process_that_says_why_it_cannot_start_ends_the_server(self) -> None:
        assert Restarts().pause(1, 0.5, was_ready=False) is None

    def test_one_that_crashes_at_the_start_gets_two_more_attempts(self) -> None:
        restarts = Restarts()
        assert [restarts.pause(-11, 0.5, was_ready=False) for _ in range(3)] == [0.1, 0.2, None]

    @given(st.lists(st.tuples(st.integers(-15, 5), st.floats(0, 100)), max_size=30))
    def test_what_served_once_is_always_started_again(self, deaths: list[tuple[int, float]]) -> None:
        restarts = Restarts()
        for status, lived in deaths:
            pause = restarts.pause(status, lived, was_ready=True)
            assert pause is not None
            assert 0.1 <= pause <= 10


class TestOutcome:
    def test_an_error_of_all_is_the_calls_own(self) -> None:
        errors = {1: InvalidArgument("no such model"), 2: InvalidArgument("no such model")}
        assert failure(errors, [], [], 2) is errors[1]

    def test_one_that_failed_is_named_with_what_became_of_the_others(self) -> None:
        error = failure({3: ModelFailed("boom")}, [1], [2], 3)
        assert isinstance(error, ModelFailed)
        assert str(error) == (
            "process 3 of 3: boom; undone in process 1; process 2 applied it and may differ until the call is repeated"
            " with success"
        )

    def test_the_first_one_gives_the_error_its_status(self) -> None:
        error = failure({2: AlreadyExists("there"), 3: Unavailable("gone")}, [], [1], 3)
        assert (error.http_status, str(error)[:19]) == (400, "process 2 of 3: the")


class TestIndex:
    def test_ready_only_if_ready_everywhere(self) -> None:
        ready, other = ("m", "1", "READY", ""), ("m", "1", "UNAVAILABLE", "boom")
        assert common_index({1: [ready], 2: [ready]}) == [ready]
        assert common_index({1: [ready], 2: [other]}) == [("m", "1", "UNAVAILABLE", "process 2: boom")]
        assert common_index({1: [("m", "", "", "")], 2: [ready]}) == [
            ("m", "1", "UNAVAILABLE", "process 1: not loaded")
        ]
        assert common_index({1: [("m", "", "", "")], 2: [("m", "", "", "")]}) == [("m", "", "", "")]


class TestLiveness:
    def test_a_stopped_process_is_silent_after_its_time(self) -> None:
        liveness = Liveness(10 * SECOND, SECOND)
        silent = [now for now in range(40) if liveness.is_silent(now * SECOND, ("T", 50), now * SECOND)]
        assert silent[0] == 10

    def test_one_that_beats_is_not(self) -> None:
        liveness = Liveness(10 * SECOND, SECOND)
        assert not any(liveness.is_silent(SECOND, ("S", 50), now * SECOND) for now in range(1000))

    def test_one_that_computes_or_reads_is_not(self) -> None:
        liveness = Liveness(10 * SECOND, SECOND)
        assert not any(liveness.is_silent(now * SECOND, ("R", now), now * SECOND) for now in range(500))
        assert not any(liveness.is_silent(now * SECOND, ("D", 499), now * SECOND) for now in range(500, 600))
        assert liveness.is_silent(600 * SECOND, ("R", 5000), 600 * SECOND), "but not for ever"

    def test_a_pause_of_the_observer_is_nobody_elses_silence(self) -> None:
        liveness = Liveness(10 * SECOND, SECOND)
        assert not liveness.is_silent(0, ("S", 50), 0)
        # All were stopped for a minute; this one needs a moment to beat again.
        assert not liveness.is_silent(60 * SECOND, ("S", 50), 60 * SECOND)
        # If it does not, it is silent after the usual time: two seconds of the minute count.
        silent = [now for now in range(61, 90) if liveness.is_silent(now * SECOND, ("S", 50), now * SECOND)]
        assert silent[0] == 68

    def test_one_that_ended_is_told_by_its_connection(self) -> None:
        assert not Liveness(10 * SECOND, SECOND).is_silent(20 * SECOND, None, 20 * SECOND)


class TestBoard:
    def test_ready_means_all_and_beating(self) -> None:
        board = Board(2)
        for number in board.numbers:
            board.claim(number, 100 + number, 0)
            board.mark(number, LISTENING, JOINED, STARTED)
        board.mark(1, READY)
        assert not board.all_started(), "the coordinator does not listen yet"
        board.mark(COORDINATOR, STARTED)
        assert board.all_started()
        assert not board.all_ready(0)
        board.mark(2, READY)
        assert board.all_ready(1 * SECOND)
        board.beat(1, 5 * SECOND)
        assert board.ready(5 * SECOND) == [1]
        board.clear(2)
        assert (board.pid(2), board.restarts(2), board.those(LISTENING)) == (0, 1, [1])


@pytest.mark.parametrize("count", [2, 10_000])
def test_sockets_can_be_bound_whatever_the_length_of_the_temporary_directory(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="l", dir="/tmp") as short:
        used = set()
        for length in range(len(short) + 2, 100):
            directory = Path(short) / ("x" * (length - len(short) - 1))
            directory.mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(directory))
            group = ProcessGroup.create(count)
            try:
                for path in (group.socket(count), group.coordinator_socket):
                    with socket.socket(socket.AF_UNIX) as bound:
                        bound.bind(path)
                used.add(group.directory.parent == directory)
            finally:
                group.remove()
        assert used == {True, False}


def test_a_port_that_another_server_took_after_the_reservation() -> None:
    ports, held = reserve({"grpc": ("127.0.0.1", 0)})
    try:
        check(ports, held)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(("127.0.0.1", ports["grpc"]))
            check(ports, held)
            other.listen()
            with pytest.raises(PortInUse) as caught:
                check(ports, held)
            assert caught.value.service == "grpc"
    finally:
        for bound in held:
            bound.close()


def test_memory_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "smaps_rollup").write_text(
        "00400000-7fff Rollup\nRss: 100 kB\nPss: 40 kB\nShared_Clean: 50 kB\nShared_Dirty: 20 kB\n"
    )
    found = memory(7, tmp_path)
    assert found is not None
    assert (found.rss, found.pss, found.shared) == (102400, 40960, 71680)
    assert memory(8, tmp_path) is None
