"""The epoch that all clients route by: what the leader waits for, and how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.observed_state import ObservedState
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import DONE, DRAINING, Change, RolloutRecord
from isochrone.control.xds.ads import Request
from isochrone.control.xds.clients import PATIENCE, Client, Clients
from isochrone.control.xds.resources import RDS


def _client(clients: Clients, epoch: int, now: float = 0.0) -> Client:
    client = Client(f"client-{len(clients)}")
    client.protocol.receive(Request(RDS, ("solo",)))
    clients.enter(client)
    return _reaches(clients, client, epoch, now)


def _reaches(clients: Clients, client: Client, epoch: int, now: float = 0.0) -> Client:
    client.protocol.epoch = epoch
    clients.moved(client, now)
    return client


def test_without_clients_there_is_nothing_to_wait_for() -> None:
    clients = Clients()
    clients.commit(7, 100.0)
    assert clients.epoch(100.0) == 7


def test_the_slowest_client_counts_until_patience_ends() -> None:
    clients = Clients()
    slow, quick = _client(clients, 6), _client(clients, 7)
    clients.commit(7, 100.0)
    for waited in (0.0, PATIENCE - 0.1):
        assert clients.epoch(100.0 + waited) == 6
        assert clients.newly_late(100.0 + waited) == []
        clients.commit(7, 100.0 + waited)
    assert clients.epoch(100.0 + PATIENCE) == 7
    assert clients.newly_late(100.0 + PATIENCE) == [slow]
    assert clients.newly_late(200.0) == [], "reported once"
    _reaches(clients, slow, 7)
    # The next epoch: all have their time again.
    clients.commit(8, 300.0)
    assert clients.epoch(300.0) == 7
    _reaches(clients, quick, 8)
    assert clients.newly_late(300.0 + PATIENCE) == [slow]


def test_clients_that_connect_again_and_again_have_no_more_time_than_others() -> None:
    clients = Clients()
    clients.commit(7, 100.0)
    for second in range(int(PATIENCE)):
        crashing = _client(clients, 0, 100.0 + second)
        assert clients.epoch(100.0 + second) == 0, "it may route by any earlier epoch"
        clients.leave(crashing)
        assert clients.epoch(100.0 + second) == 7
    _client(clients, 0, 100.0 + PATIENCE)
    assert clients.epoch(100.0 + PATIENCE) == 7


def test_a_client_that_leaves_is_not_waited_for() -> None:
    clients = Clients()
    gone = _client(clients, 1)
    clients.commit(7, 100.0)
    assert clients.epoch(100.0) == 1
    clients.leave(gone)
    assert clients.epoch(100.0) == 7
    assert clients.newly_late(200.0) == []


def test_a_stream_that_asks_for_nothing_is_not_waited_for() -> None:
    clients = Clients()
    silent = Client("silent")
    assert clients.enter(silent)
    silent.protocol.receive(Request("type.googleapis.com/nonsense", ("x",)))
    clients.moved(silent, 100.0)
    clients.commit(7, 100.0)
    assert (clients.epoch(100.0), len(clients)) == (7, 0)
    silent.protocol.receive(Request(RDS, ("solo",)))
    clients.moved(silent, 101.0)
    assert (clients.epoch(101.0), len(clients)) == (0, 1)


def test_a_client_that_was_late_is_not_waited_for_until_it_has_caught_up() -> None:
    clients = Clients()
    stuck = _client(clients, 1)
    clients.commit(2, 100.0)
    assert clients.newly_late(100.0 + PATIENCE) == [stuck]
    clients.commit(3, 200.0)
    assert clients.epoch(200.0) == 3, "one wait for a client that does not follow, not one per commit"
    assert clients.newly_late(200.0 + PATIENCE) == []
    _reaches(clients, stuck, 2, 210.0)
    assert clients.epoch(200.0) == 3, "another one was committed meanwhile"
    _reaches(clients, stuck, 3, 220.0)
    clients.commit(4, 300.0)
    assert clients.epoch(300.0) == 3
    assert clients.newly_late(300.0 + PATIENCE) == [stuck]


def test_a_client_that_has_just_connected_is_not_late() -> None:
    clients = Clients()
    clients.commit(7, 100.0)
    new = _client(clients, 0, 500.0)
    assert clients.newly_late(500.0) == []
    assert clients.epoch(500.0) == 7
    assert clients.newly_late(500.0 + PATIENCE) == [new]


def test_one_host_does_not_lock_out_the_others() -> None:
    clients = Clients(most_per_host=3)
    streams = [Client(str(number), host="ipv4:10.0.0.1") for number in range(4)]
    assert [clients.enter(stream) for stream in streams] == [True, True, True, False]
    assert clients.enter(Client("other", host="ipv4:10.0.0.2"))
    clients.leave(streams[0])
    assert clients.enter(streams[3])


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["move", "move", "leave", "commit", "late"])), max_size=60)
)
def test_the_counts_are_those_of_the_clients(steps: list[tuple[int, str]]) -> None:
    """Against all clients one by one, at all times."""
    clients = Clients()
    seen: dict[int, Client] = {}
    late: set[Client] = set()
    committed, since, now = 0, 0.0, 0.0
    for number, step in steps:
        now += 4.0
        if step == "move":
            client = seen[number] if number in seen else _client(clients, 0, now)
            seen[number] = client
            _reaches(clients, client, min(committed, client.protocol.epoch + number), now)
            if client.protocol.epoch >= committed:
                late.discard(client)
        elif step == "leave" and number in seen:
            late.discard(seen[number])
            clients.leave(seen.pop(number))
        elif step == "commit":
            committed, since = committed + 1, now
            clients.commit(committed, now)
        elif step == "late":
            late.update(clients.newly_late(now))
        waited = [client.protocol.epoch for client in seen.values() if client not in late]
        assert len(clients) == len(seen)
        assert clients.epoch(now) == (committed if now - since >= PATIENCE else min([committed, *waited]))


def test_a_rollout_drains_only_when_the_clients_of_xds_have_seen_its_epoch() -> None:
    record = RolloutRecord("r1", {"solo": Change("2", "1")}, DRAINING, since={DRAINING: 100.0}, epoch=7)

    def after(seen: int) -> RolloutRecord:
        state = ObservedState(101.0, EpochRecord(7), xds_epochs={"c1": seen}, rollouts=(record,))
        return advance(record, state).record

    waiting = after(6)
    assert waiting.state == DRAINING
    assert waiting.note == "waits for gateway c1 (xDS) to see epoch 7"
    assert after(7).state == DONE
