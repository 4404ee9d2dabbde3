"""The bootstraps on the page of xDS are those that the tests run Envoy and grpcio with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from isochrone.control.xds import resources
from isochrone.control.xds.clients import PATIENCE
from isochrone.control.xds.server import LISTEN_KEY
from isochrone.protocol.headers.version_pins import Pin, model_authority, pin_of, pinned_authority
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
    assert f"by more than {PATIENCE:g} seconds" in PAGE


def _lost() -> dict[str, str]:
    """What the table of losses says of xDS."""
    rows = PAGE.partition("## What is lost")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| ")]
    return {name: xds for name, _, xds in cells}


def test_what_is_lost() -> None:
    words = {2: "two", 3: "three", 4: "four"}
    retries = resources._retries()["num_retries"]["value"]
    assert _lost()["retries"] == f"{words[retries]} retries where no answer has begun"
    assert any("scaling" in name and "zero" in name for name in _lost()), "pool_load counts requests at gateways"


def test_several_controllers_are_one_name() -> None:
    """By gRFC A71 gRPC clients that have their routes do not go on to another server of their bootstrap."""
    assert len(grpc_bootstrap(18000)["xds_servers"]) == 1
    assert "one name that resolves to all of them" in PAGE
