"""A sealed store on a real etcd keeps what every store promises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from isochrone.store.opening import open_store
from isochrone.store.seals import Seal
from store_conformance import Place, StoreConformance

pytestmark = pytest.mark.peers

_numbers = itertools.count(1)
_SEAL = Seal((b"k" * 32,))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), loopback_members(1)) as cluster:
        yield cluster


@pytest.fixture
def place(etcd: EtcdCluster) -> Place:
    return Place(lambda: open_store(etcd.url, seal=_SEAL), f"/isochrone/sealed-{next(_numbers)}/", lease_seconds=5)


class TestSealedEtcdStore(StoreConformance):
    pass
