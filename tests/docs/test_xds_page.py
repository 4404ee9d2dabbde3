"""The bootstraps on the page of xDS are those that the tests run Envoy and grpcio with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from isochrone.control.xds.clients import PATIENCE
from isochrone.control.xds.server import LISTEN_KEY
from isochrone.protocol.version_pins import Pin, model_authority, pin_of, pinned_authority
from xds_fleet import envoy_bootstrap, grpc_bootstrap

PAGE = (Path(__file__).parents[2] / "docs" / "xds.md").read_text()


def _block(kind: str) -> str:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[0]


def test_the_bootstrap_of_grpc() -> None:
    node = {"node": {"id": "robot-17", "cluster": "robots"}}
    assert json.loads(_block("json")) == {**grpc_bootstrap(18000), **node}


def test_the_bootstrap_of_envoy() -> None:
    node = {"node": {"id": "envoy-1", "cluster": "edge", "metadata": {LISTEN_KEY: "0.0.0.0:8080"}}}
    assert yaml.safe_load(_block("yaml")) == {**envoy_bootstrap(18000, "0.0.0.0:8080", 9901), **node}


def test_names_and_times() -> None:
    assert f"xds:///{model_authority('detector')}" in PAGE
    pinned = pinned_authority("detector", "2")
    assert f"`{pinned}`" in PAGE
    assert pin_of(pinned.encode()) == Pin("detector", "2", None)
    assert f"at most {PATIENCE:g} seconds" in PAGE
