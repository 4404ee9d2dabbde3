"""The flags that make a worker part of a fleet: conflicts are errors before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isochrone.cli.processes.worker_membership import WorkerMembership
from isochrone.errors import ConfigError
from isochrone.worker.server.failures import StartFailed

MEMBER = WorkerMembership("sqlite:fleet.db", "farm", "cpu-1", "cpu", "", "", "", 0, 5.0)


def test_a_worker_with_a_name_or_without() -> None:
    MEMBER.check("explicit", allow_http=True)
    replace(MEMBER, name="").check("explicit", allow_http=True)


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_somebody_else_must_not_decide_what_is_loaded(mode: str) -> None:
    with pytest.raises(StartFailed, match=f"--store needs --model-control-mode explicit.*given '{mode}'"):
        MEMBER.check(mode, allow_http=True)


def test_the_controller_needs_http() -> None:
    with pytest.raises(StartFailed, match="--store needs HTTP"):
        MEMBER.check("explicit", allow_http=False)


def test_the_controller_needs_a_port_of_the_workers_own() -> None:
    with pytest.raises(StartFailed, match="--store and --reuse-port"):
        MEMBER.check("explicit", allow_http=True, shared_port=True)


def test_each_process_of_a_fleet_has_a_token_of_its_own() -> None:
    assert len({replace(MEMBER).control_token for _ in range(3)}) == 3
    assert all(len(replace(MEMBER).control_token) > 40 for _ in range(3))
    assert replace(MEMBER, store="").control_token == ""
    assert MEMBER.control_token not in repr(MEMBER)


@pytest.mark.parametrize("name", ["a/b", "-a", ".", "a b", "ä", "a" * 129, "a\n"])
def test_names_that_cannot_be_keys(name: str) -> None:
    for flag, member in (("--name", replace(MEMBER, name=name)), ("--fleet", replace(MEMBER, fleet=name))):
        with pytest.raises(StartFailed, match=f"{flag}: expected letters, digits"):
            member.check("explicit", allow_http=True)


def test_a_store_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected sqlite:PATH"):
        replace(MEMBER, store="fleet.db").link("127.0.0.1")
