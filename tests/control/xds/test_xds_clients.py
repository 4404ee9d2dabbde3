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
    slow.protocol.epoch = 7
    # The next epoch: all have their time again.
    clients.commit(8, 300.0)
    assert clients.epoch(300.0) == 7
    quick.protocol.epoch = 8
    assert clients.newly_late(300.0 + PATIENCE) == [slow]


def test_clients_that_connect_again_and_again_have_no_more_time_than_others() -> None:
    clients = Clients()
    clients.commit(7, 100.0)
    for second in range(int(PATIENCE)):
        clients.open = {Client("crash loop")}
        assert clients.epoch(100.0 + second) == 0, "it may route by any earlier epoch"
    clients.open = {Client("crash loop")}
    assert clients.epoch(100.0 + PATIENCE) == 7


def test_a_client_that_leaves_is_not_waited_for() -> None:
    clients = Clients()
    gone = _client(clients, 1)
    clients.commit(7, 100.0)
    assert clients.epoch(100.0) == 1
    clients.open.discard(gone)
    assert clients.epoch(100.0) == 7
    assert clients.newly_late(200.0) == []


def test_a_rollout_drains_only_when_the_clients_of_xds_have_seen_its_epoch() -> None:
    record = RolloutRecord("r1", {"solo": Change("2", "1")}, DRAINING, since={DRAINING: 100.0}, epoch=7)

    def after(seen: int) -> RolloutRecord:
        state = ObservedState(101.0, EpochRecord(7), xds_epochs={"c1": seen}, rollouts=(record,))
        return advance(record, state).record

    waiting = after(6)
    assert waiting.state == DRAINING
    assert waiting.note == "waits for gateway c1 (xDS) to see epoch 7"
    assert after(7).state == DONE
