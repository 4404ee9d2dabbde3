"""The epoch that all clients route by: what the leader waits for, and how long."""

from __future__ import annotations

from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.observed_state import ObservedState
from isochrone.control.state.records import DONE, DRAINING, Change, EpochRecord, RolloutRecord
from isochrone.control.xds.clients import PATIENCE, Client, Clients


def _client(clients: Clients, epoch: int) -> Client:
    client = Client(f"client-{len(clients.open)}")
    client.protocol.epoch = epoch
    clients.open.add(client)
    return client


def test_without_clients_there_is_nothing_to_wait_for() -> None:
    assert Clients().epoch(7, 100.0) == 7


def test_the_slowest_client_counts_until_patience_ends() -> None:
    clients = Clients()
    slow = _client(clients, 6)
    _client(clients, 7)
    assert clients.epoch(7, 100.0) == 6
    assert clients.epoch(7, 100.0 + PATIENCE - 0.1) == 6
    assert clients.late(7, 100.0 + PATIENCE - 0.1) == []
    assert clients.epoch(7, 100.0 + PATIENCE) == 7
    assert clients.late(7, 100.0 + PATIENCE) == [slow]
    assert clients.late(7, 200.0) == [], "reported once"
    slow.protocol.epoch = 7
    assert clients.epoch(7, 201.0) == 7
    # The next epoch: it has its time again.
    assert clients.epoch(8, 300.0) == 7
    assert clients.late(8, 300.0 + PATIENCE)[0] in clients.open


def test_a_client_that_comes_on_has_its_time_anew() -> None:
    clients = Clients()
    client = _client(clients, 5)
    assert clients.epoch(7, 100.0) == 5
    client.protocol.epoch = 6
    assert clients.epoch(7, 100.0 + PATIENCE) == 6


def test_a_client_that_leaves_is_not_waited_for() -> None:
    clients = Clients()
    clients.open.discard(_client(clients, 1))
    assert clients.epoch(7, 100.0) == 7


def test_a_rollout_drains_only_when_the_clients_of_xds_have_seen_its_epoch() -> None:
    record = RolloutRecord("r1", {"solo": Change("2", "1")}, DRAINING, since={DRAINING: 100.0}, epoch=7)

    def after(seen: int) -> RolloutRecord:
        state = ObservedState(101.0, EpochRecord(7), xds_epochs={"c1": seen}, rollouts=(record,))
        return advance(record, state).record

    waiting = after(6)
    assert waiting.state == DRAINING
    assert waiting.note == "waits for gateway c1 (xDS) to see epoch 7"
    assert after(7).state == DONE
