"""The sample of one worker or gateway, of the readings of its page. Pure.

A gateway's page has lines of its workers, too: what the gateway knows of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from urllib.parse import urlsplit

from isochrone.cli.top.figures import Figures, ModelFigures, Pair, between, of_a_worker_alone, of_models
from isochrone.cli.top.samples import FAULT, GATEWAYS, MODELS, USUAL, WARNING, WORKERS, Line, Sample, Seen


def page_sample(url: str, pair: Pair, at: float) -> Sample:
    address = urlsplit(url).netloc
    page, process = pair[1], between(*pair)
    if page.is_gateway:
        workers = {name: Figures(in_flight=each.get("in_flight")) for name, each in page.endpoints.items()}
        seen = Seen(of_models((pair,), ()), {address: process}, workers)
    else:
        seen = Seen(of_a_worker_alone(pair), {}, {address: process})
    own = Line(address, asdict(process), facts=(("metrics", url),))
    lines = {
        MODELS: tuple(
            Line(name, asdict(seen.models.get(name, ModelFigures())), ", ".join(page.versions.get(name, ())))
            for name in sorted(page.models)
        ),
        WORKERS: tuple(_endpoint(name, each) for name, each in page.endpoints.items()) if page.is_gateway else (own,),
        GATEWAYS: (own,) if page.is_gateway else (),
    }
    kind = GATEWAYS if page.is_gateway else WORKERS
    title = f"{'gateway' if page.is_gateway else 'worker'} {address}"
    return Sample(at, title, lines, seen, (), {kind: {address: pair}})


def _endpoint(address: str, known: Mapping[str, float]) -> Line:
    state, severity = "serving", USUAL
    if not known.get("healthy", 1.0):
        state, severity = "unhealthy", FAULT
    elif known.get("ejected"):
        state, severity = "ejected", WARNING
    round_trip = known.get("round_trip")
    facts = () if round_trip is None else (("round trip", f"{round_trip * 1000:.3f} ms"),)
    return Line(address, asdict(Figures(in_flight=known.get("in_flight"))), "", state, severity, facts)
