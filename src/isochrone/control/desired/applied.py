"""Reads the applied fleet record: the desired models, the outside servers, and the gateways' rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isochrone.control.desired.reconcile import DesiredModel
from isochrone.control.fleet.derived.gateway_rules import SOURCE, gateway_rules
from isochrone.control.fleet.derived.outside_servers import server_records
from isochrone.control.fleet.reading.catalog import CatalogModel, catalog
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.codec import decode
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import FleetRecord
from isochrone.gateway.rules.file import parse_rules
from isochrone.gateway.rules.gateway_rules import GatewayRules


def read_fleet(record: FleetRecord) -> tuple[Mapping[str, DesiredModel], tuple[WorkerRecord, ...]]:
    """The desired models and the outside servers. Reads the repositories: it may take a while, and raises their
    errors."""
    fleet = Fleet.model_validate(record.spec)
    models = catalog(fleet, Path(record.directory), "fleet.yaml", record.text)
    return {name: _asked(model) for name, model in models.items()}, server_records(fleet)


def _asked(model: CatalogModel) -> DesiredModel:
    rollout = model.spec.rollout
    return DesiredModel(
        model.version,
        model.pools,
        model.stages,
        model.spec.changes_with,
        model.spec.memory,
        rollout.cutover,
        rollout.canary.rule() if rollout.canary is not None else None,
        rollout.compare.rule() if rollout.compare is not None else None,
        rollout.prepare_seconds,
    )


def read_rules(value: bytes) -> GatewayRules:
    """The gateways' rules in a fleet record."""
    return parse_rules(gateway_rules(Fleet.model_validate(decode(value, FleetRecord).spec)), SOURCE)
