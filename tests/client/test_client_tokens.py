"""A client's token: given once, or in the environment, it goes along with every call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isochrone
from isochrone.cli import api_client
from isochrone.errors import InvalidArgument, IsochroneError, PermissionDenied, Unauthenticated
from isochrone.secure.access.tokens import digest_of, new_token
from isochrone.secure.api_token import VARIABLE, token_fields
from sample_models import write_models
from server_process import ServerProcess, StartServer

TOKEN, OTHER = new_token(), new_token()
X = {"IN": np.array([1.0, 2.0], np.float32)}


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(scope="module")
def guarded(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A worker that says nothing to callers without a role, not even whether it is ready."""
    directory = tmp_path_factory.mktemp("guarded")
    models: Path = write_models(directory / "models", "identity_fp32", "repeat")
    access = directory / "access.yaml"
    access.write_text(
        f"tokens: {{robots: {{sha256: {digest_of(TOKEN)}}}, others: {{sha256: {digest_of(OTHER)}}}}}\n"
        "assign: [{to: ['token:robots'], roles: [caller]}]\n"
        "anonymous: []\n"
    )
    with server_factory(models, "--access", str(access)) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, guarded: ServerProcess) -> str:
    return f"{request.param}://{guarded.http_url if request.param == 'http' else guarded.grpc_url}"


def answers(url: str, client: Any, **more: Any) -> None:
    assert client.is_ready(**more)
    assert client.is_ready("identity_fp32", **more)
    client.wait_ready(30, "identity_fp32", **more)
    assert client.metadata("identity_fp32", **more).name == "identity_fp32"
    assert client.infer("identity_fp32", X, **more)["OUT"].tolist() == [1.0, 2.0]
    if url.startswith("grpc"):
        assert [int(each["OUT"][0]) for each in client.stream("repeat", {"IN": np.int32([1, 2])}, **more)] == [1, 2]


def test_one_token_for_all_calls(url: str, open_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(url, open_client(url, token=TOKEN))
    # The text of a file ends with a line.
    answers(url, open_client(url, token=f"{TOKEN}\n"))
    # What a call says goes before, in any spelling; so does what the client says before the environment.
    answers(url, open_client(url, token=OTHER), headers={"Authorization": f"Bearer {TOKEN}"})
    monkeypatch.setenv(VARIABLE, OTHER)
    answers(url, open_client(url, token=TOKEN))


def test_the_token_of_the_environment(url: str, open_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f" {TOKEN}\n")
    client = open_client(url)
    monkeypatch.delenv(VARIABLE)
    answers(url, client)
    monkeypatch.setenv(VARIABLE, TOKEN)
    with pytest.raises(Unauthenticated):
        open_client(url, token="").metadata("identity_fp32")


def test_without_the_right_nothing_is_ready_and_nobody_waits_for_it(url: str, open_client: Any) -> None:
    cases: list[tuple[dict[str, str], type[IsochroneError], str]] = [
        ({}, Unauthenticated, "needs a credential"),
        ({"token": OTHER}, PermissionDenied, "has no role"),
    ]
    for options, kind, said in cases:
        client = open_client(url, **options)
        assert not client.is_ready()
        with pytest.raises(kind, match=said):
            client.metadata("identity_fp32")
        with pytest.raises(kind, match=said):
            client.wait_ready(3600, "identity_fp32")


@pytest.mark.parametrize("token", ["two words", "line\nend", "häns", "\x00"])
def test_what_no_header_can_carry_is_refused_and_not_shown(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (isochrone.Client, isochrone.AsyncClient):
        with pytest.raises(InvalidArgument, match="token: expected ASCII characters") as raised:
            kind("localhost:1", token=token)
        assert token not in str(raised.value)
    if "\x00" in token:
        return
    # Commands follow the same rule.
    monkeypatch.setenv(VARIABLE, token)
    with pytest.raises(InvalidArgument, match=f"{VARIABLE}: expected"):
        isochrone.Client("localhost:1")
    with pytest.raises(api_client.ApiFailed, match=f"{VARIABLE}: expected"):
        api_client.token_fields()


def test_commands_and_clients_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert token_fields() == api_client.token_fields() == {}
    monkeypatch.setenv(VARIABLE, f"\t{TOKEN} ")
    assert token_fields() == api_client.token_fields() == {"authorization": f"Bearer {TOKEN}"}
    assert TOKEN not in repr(isochrone.Client("localhost:1"))
