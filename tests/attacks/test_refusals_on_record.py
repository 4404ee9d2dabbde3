"""Strangers who send refused requests from many addresses: all are counted, and nobody with a name hides among them."""

from __future__ import annotations

import http.client
from collections import Counter
from contextlib import closing
from pathlib import Path

from guarded_servers import ask, write_access

from isochrone.secure.audit.reading import merged
from isochrone.secure.audit.refusals import MOST, MOST_OF_STRANGERS
from isochrone.secure.audit.verification import verify
from sample_models import write_models
from server_process import StartServer
from watching import wait_for

#: Each of another address, and of two permissions.
STRANGERS = 240


def test_a_flood_of_strangers_hides_no_refused_caller(
    server_factory: StartServer, tmp_path: Path, tried: Counter[str]
) -> None:
    tokens = write_access(tmp_path / "access.yaml")
    repository = write_models(tmp_path / "models", "identity_fp32")
    log = tmp_path / "audit" / "w-1"
    flags = ("--access", str(tmp_path / "access.yaml"), "--audit", str(tmp_path / "audit"), "--name", "w-1")
    with server_factory(repository, *flags) as server:
        for number in range(STRANGERS):
            address = f"127.0.0.{number + 2}", 0
            with closing(
                http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60, source_address=address)
            ) as connection:
                for path in ("/v2", "/v2/models/stats"):
                    connection.request("GET", path, headers={"authorization": f"Bearer iso_{number}"})
                    answer = connection.getresponse()
                    answer.read()
                    assert answer.status == 401
                    tried["refused requests from many addresses → each counted in the audit log"] += 1
        load = "/v2/repository/models/identity_fp32/load"
        assert ask(server.http_port, "POST", load, {"authorization": f"Bearer {tokens['nothing']}"}, {})[0] == 403

        def named() -> bool:
            found = (record for _, record in merged([log]) if record.action == "access.refuse")
            return any(each.actor["name"] == "token:nothing" for each in found)

        wait_for(named)
        tried["a flood that hides a refused caller → found by name"] += 1
    records = [record for _, record in merged([log]) if record.action == "access.refuse"]
    assert sum(record.details["times"] for record in records) == 2 * STRANGERS + 1
    (load_refused,) = (record for record in records if record.details.get("change") == "model.load")
    assert load_refused.actor["name"] == "token:nothing"
    # In each minute that this took.
    beyond = [record for record in records if "beyond" in record.details]
    assert beyond
    assert all(MOST_OF_STRANGERS <= record.details["beyond"] <= MOST for record in beyond)
    assert len(records) < 2 * STRANGERS
    assert verify(log).is_intact
