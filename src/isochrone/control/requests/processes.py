"""Requests about single processes: draining a worker or gateway, and forgetting a dead gateway. Pure."""

from __future__ import annotations

from isochrone.control.requests.decisions import Conflict, Decision, RequestContext, one_of
from isochrone.control.state.codec import encode
from isochrone.control.state.events import event
from isochrone.control.state.records import EventRecord
from isochrone.control.state.view import View
from isochrone.errors import NotFound
from isochrone.store.base import Delete, Put
from isochrone.suggestions import suggestion


def drain(view: View, name: str, context: RequestContext) -> Decision[str]:
    """Drain a worker or gateway: it gets no new work."""
    _known_process(view, name)
    key = view.keys.drain(name)
    if view.holds(key):
        return Decision(f"{name} is draining")
    record = EventRecord(context.at, context.who, "drain", name)
    operations = (Put(key, encode(record)), event(view.keys, record, context.unique))
    return Decision(f"{name} is draining", (view.unchanged(key),), operations)


def undrain(view: View, name: str, context: RequestContext) -> Decision[str]:
    key = view.keys.drain(name)
    if key not in view.entries:
        drained = ", ".join(view.drains) or "nothing"
        raise NotFound(f"{name} is not draining; draining: {drained}")
    record = EventRecord(context.at, context.who, "undrain", name)
    operations = (Delete(key), event(view.keys, record, context.unique))
    return Decision(f"{name} takes work again", (view.unchanged(key),), operations)


def forget_gateway(view: View, name: str, context: RequestContext) -> Decision[str]:
    """Forget a gateway that is certainly dead: strict switches no longer wait for its acknowledgement."""
    known = view.known_gateways
    if name not in known:
        raise NotFound(f"gateway '{name}': expected {suggestion(name, known, 'gateway') if known else 'none'}")
    registered = view.keys.gateway(name)
    if view.holds(registered):
        raise Conflict(f"gateway {name} is registered, so it is alive; stop it, and it leaves by itself")
    key, set_key = view.keys.known_gateway(name), view.keys.gateway_set
    record = EventRecord(context.at, context.who, "gateway forgotten", name)
    # Writing the set makes the commit of a switch that counted this gateway fail and be decided again.
    operations = (Delete(key), Put(set_key, name.encode()), event(view.keys, record, context.unique))
    compares = (view.unchanged(key), view.unchanged(registered), view.unchanged(set_key))
    return Decision(f"gateway {name} is forgotten", compares, operations)


def _known_process(view: View, name: str) -> None:
    one_of(name, sorted({*view.workers, *view.gateways, *view.known_gateways}), "worker or gateway")
