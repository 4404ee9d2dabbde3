"""The OpenAPI document: it covers every route, its references resolve, and answers are as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from api_process import KEYS, Api, with_api
from starlette.routing import Route

from isochrone.control.api.application import create_app
from isochrone.control.api.openapi import document
from isochrone.control.api.routes import OPERATIONS
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        found = [part["$ref"]] if "$ref" in part else []
        return found + [each for value in part.values() for each in references(value)]
    if isinstance(part, list):
        return [each for value in part for each in references(value)]
    return []


def test_every_route_is_described(tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path / 'fleet.db'}")
    app = create_app(store, Mirror(store, KEYS.prefix), KEYS)
    routes = {
        (route.path, method)
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = document(OPERATIONS)
    paths = {(path, method.upper()) for path, methods in described["paths"].items() for method in methods}
    assert routes - paths == {("/v1/openapi.json", "GET")}
    assert paths <= routes
    assert len(paths) == len(OPERATIONS)


def test_every_operation_says_what_it_does_takes_and_answers() -> None:
    described = document(OPERATIONS)
    identities = []
    for path, methods in described["paths"].items():
        for operation in methods.values():
            identities.append(operation["operationId"])
            assert operation["summary"].endswith(".")
            named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            assert any(status.startswith("2") for status in operation["responses"])
            assert "default" in operation["responses"]
    assert len(identities) == len(set(identities))


def test_all_references_resolve_and_the_version_is_stated() -> None:
    described = document(OPERATIONS)
    assert described["openapi"] == "3.1.0"
    schemas = described["components"]["schemas"]
    found = references(described)
    assert found
    assert {reference.removeprefix("#/components/schemas/") for reference in found} <= set(schemas)
    assert {"Status", "RolloutRecord", "ErrorAnswer", "RolloutRequest"} <= set(schemas)


def test_it_is_served_and_answers_have_the_fields_it_names(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        described = await api.get("/v1/openapi.json")
        assert described == msgspec.json.decode(msgspec.json.encode(document(OPERATIONS)))
        status = await api.get("/v1/status")
        assert set(status) == set(described["components"]["schemas"]["Status"]["properties"])

    with_api(tmp_path, scenario)
