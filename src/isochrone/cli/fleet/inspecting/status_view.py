"""The display of a fleet's status as tables. Pure."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isochrone.cli.console import counted, ordinal, span, table
from isochrone.cli.rollouts import view as rollout_view
from isochrone.cli.rollouts.view import outcome_text
from isochrone.control.api.messages import GatewayStatus, Status, WorkerStatus
from isochrone.control.state.process_records import ProcessRecord
from isochrone.control.state.rollout_records import ABORTED

#: Processes that a line names.
_NAMED = 10
_STYLES = {"serving": "green", "degraded": "yellow", "unserved": "red", "not served": "red"}


def picture(status: Status, now: float) -> RenderableType:
    parts: list[RenderableType] = [_head(status)]
    parts += [
        Text(f"the record {fault.key} cannot be read and is skipped: {fault.reason}", style="red")
        for fault in status.faults
    ]
    if status.access_fault is not None:
        parts.append(Text(status.access_fault.text, style="red"))
    if not status.store.connected:
        said = f"the store is unreachable ({status.store.error or status.store.url}): this is the last known state"
        parts.append(Text(said, style="red"))
    if not status.generation:
        parts.append(Text("no fleet.yaml is applied yet; do it with: isochrone apply FILE", style="yellow"))
    if pending := _pending(status, now):
        parts.append(Text(pending, style="yellow"))
    parts.append(_models(status))
    if status.pools:
        parts.append(_pools(status, now))
    parts += [_workers(status, now), _gateways(status, now)]
    if status.xds_servers:
        parts.append(_xds_servers(status))
    if status.aborted is not None:
        # One line: "isochrone rollout status ID" shows the rest.
        at = status.aborted.since.get(ABORTED, status.aborted.at)
        parts.append(Text(f"{outcome_text(status.aborted)} ({span(now - at)} ago)", style="red"))
    for record in status.rollouts:
        parts += [Text(""), rollout_view.picture(record, now)]
    return Group(*parts)


def _head(status: Status) -> Text:
    leader = (status.leader, "green") if status.leader else ("none", "red")
    return Text.assemble(
        ("fleet ", "dim"),
        (status.fleet, "bold"),
        (f"  generation {status.generation}  epoch {status.epoch}  leader ", "dim"),
        leader,
        (f"  store {status.store.url}", "dim"),
    )


def _pending(status: Status, now: float) -> str:
    """The restarts that are not over; "": there are none."""
    found = status.restarts
    if found is None:
        return ""
    if found.generation < status.generation:
        return (
            f"generation {status.generation} is applied, and its processes do not run yet: the supervisor ('isochrone "
            f"up') has read generation {found.generation}"
        )
    if not found.processes:
        return ""
    names = ", ".join(found.processes[:_NAMED])
    more = f" and {len(found.processes) - _NAMED} more" if len(found.processes) > _NAMED else ""
    since = span(now - found.at)
    return f"restarts with the settings of generation {found.generation} are pending for {since}: {names}{more}"


def _models(status: Status) -> Table:
    # Fleets without signatures need no column for them.
    signed = any(model.signed_by for model in status.models)
    made = table("models", "model", "version", "previous", "canary", "state", "pools", *(["signed by"] * signed))
    for model in status.models:
        canary = f"{model.canary.version} at {model.canary.weight:.0%}" if model.canary is not None else "–"
        state = f"{model.state} ({model.rollout})" if model.rollout else model.state
        if model.according_to:
            state = f"{state}, says gateway {model.according_to}"
        if model.fault:
            state = f"{state}: {model.fault}"
        style = _STYLES.get(model.state, "red" if model.fault else "cyan")
        made.add_row(
            model.name,
            model.version or "–",
            model.previous or "–",
            canary,
            Text(state, style=style),
            ", ".join(model.pools) or "–",
            *([Text(model.signed_by or "–")] * signed),
        )
    return made


def _pools(status: Status, now: float) -> Table:
    made = table("autoscaled pools", "pool", "workers", "bounds", "why", right=("workers",))
    for pool in status.pools:
        detail = f" ({pool.detail})" if pool.detail else ""
        why = f"{pool.reason}{detail}, {span(now - pool.at)} ago" if pool.at else "as in fleet.yaml"
        made.add_row(pool.name, str(pool.workers), f"{pool.least} to {pool.most}", why)
    return made


def _workers(status: Status, now: float) -> Table:
    made = table("workers", "worker", "address", "pool", "kind", "state")
    for worker in status.workers:
        made.add_row(worker.name, worker.address, worker.pool or "–", worker.kind, _state(worker, now))
    registered = {worker.name for worker in status.workers}
    for process in status.processes:
        if process.role == "worker" and process.name not in registered:
            made.add_row(process.name, "–", process.pool or "–", "isochrone", _dead(process))
    return made


def _gateways(status: Status, now: float) -> Table:
    made = table("gateways", "gateway", "address", "epoch", "state", right=("epoch",))
    for gateway in status.gateways:
        state = _state(gateway, now) if gateway.registered else Text("not registered", style="red")
        behind = gateway.registered and gateway.epoch != status.epoch
        epoch = Text(str(gateway.epoch or "–"), style="yellow" if behind else "")
        made.add_row(gateway.name, gateway.address or "–", epoch, state)
    listed = {gateway.name for gateway in status.gateways}
    for process in status.processes:
        if process.role == "gateway" and process.name not in listed:
            made.add_row(process.name, "–", "–", _dead(process))
    return made


def _xds_servers(status: Status) -> Table:
    made = table("xDS", "controller", "address", "clients", "epoch", right=("clients", "epoch"))
    for server in status.xds_servers:
        host = f"[{server.host}]" if ":" in server.host else server.host
        epoch = Text(str(server.epoch or "–"), style="yellow" if server.epoch != status.epoch else "")
        made.add_row(server.name, f"{host}:{server.port}", str(server.clients), epoch)
    return made


def _dead(process: ProcessRecord) -> Text:
    if not process.deaths:
        return Text(process.how, style="cyan")
    times = f" for the {ordinal(process.deaths)} time" if process.deaths > 1 else ""
    error = f": {process.error}" if process.error else ""
    waits = f"; waits: {process.waits}" if process.waits else ""
    return Text(f"{process.how}{times}{error}{waits}", style="red")


def _state(process: WorkerStatus | GatewayStatus, now: float) -> Text:
    if process.draining:
        return Text(f"draining for {span(now - process.draining_since)}", style="yellow")
    if isinstance(process, WorkerStatus) and process.fault:
        return Text(f"gets no requests: {process.fault}", style="red")
    if isinstance(process, WorkerStatus) and process.load_failures:
        model, reason = next(iter(process.load_failures.items()))
        others = len(process.load_failures) - 1
        more = f" (and {counted(others, 'more model')})" if others else ""
        return Text(f"cannot load {model} {reason}{more}", style="red")
    if isinstance(process, WorkerStatus) and process.standby:
        return Text("stands by", style="cyan")
    if isinstance(process, GatewayStatus) and process.faults:
        key, reason = next(iter(process.faults.items()))
        return Text(f"cannot read {key}: {reason}", style="red")
    if isinstance(process, GatewayStatus) and process.names:
        name, reason = next(iter(process.names.items()))
        return Text(f"serving; the name {name} does not resolve: {reason}", style="yellow")
    return Text("serving", style="green")
