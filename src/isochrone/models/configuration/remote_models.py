"""What the configuration of a remote model states about the model that computes it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tritonclient.grpc import model_config_pb2

#: ``remote_version``: the version that the other server chooses.
LATEST = "latest"


class ReachedModel(NamedTuple):
    """The model that a version of a remote model reaches."""

    model: str
    #: "": the one that the other server chooses.
    version: str
    #: As they are written.
    endpoints: tuple[str, ...]


def reached_model(config: model_config_pb2.ModelConfig, version: str) -> ReachedModel | None:
    """None: the model is no remote one. ``version``: of the remote model."""
    if config.backend != "remote":
        return None

    def given(key: str) -> str:
        return config.parameters[key].string_value.strip() if key in config.parameters else ""

    stated = given("remote_version")
    endpoints = tuple(part.strip() for part in given("endpoints").split(",") if part.strip())
    return ReachedModel(given("remote_model") or config.name, "" if stated == LATEST else stated or version, endpoints)
