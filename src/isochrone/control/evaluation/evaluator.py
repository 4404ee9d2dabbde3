"""Runs the evaluations of rollouts: observes canary steps and compares outputs, until each has a verdict.

Reads counts and samples from the gateways' metrics ports; ``judging`` and ``replay`` interpret them. A new leader
restarts the counts of a canary step: the step takes longer then, and is judged by the same rule.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec
import structlog

from isochrone.control.evaluation.figures import Tally
from isochrone.control.evaluation.judging import PROMOTE, ROLL_BACK, WAIT, Judgement, judge
from isochrone.control.evaluation.replay import Comparison, compare_versions
from isochrone.control.rollout.decision import Decision
from isochrone.control.rollout.observed_state import ObservedState, Verdict
from isochrone.control.state.process_records import NO_FIELDS, GatewayRecord
from isochrone.control.state.rollout_records import CanaryRule, Change, CompareRule, RolloutRecord
from isochrone.errors import Unavailable
from isochrone.gateway.evaluation.counts import EvaluationReport
from isochrone.gateway.evaluation.sampling import Sample, SampleReport
from isochrone.protocol.access import control_token
from isochrone.wire.tls.fleet_transport import fleet_transport
from isochrone.wire.tls.process_tls import refuses

log = structlog.get_logger(__name__)
_Answer = TypeVar("_Answer")

#: Seconds between readings of the gateways' counts, and of their samples.
_READ = 0.5
_ANSWER_SECONDS = 3.0
#: Latencies of a step are counted from this long after its start. Until then answers come from queues that the step
#: before filled, longer ones for the old version: on a saturated machine equal versions looked 11 and 22 % faster.
_SETTLE_SECONDS = 2.0


class Evaluator:
    """The verdicts, by rollout. ``changed`` is called when there is a new one."""

    def __init__(self, changed: Callable[[], None], own_fields: Mapping[str, str] = NO_FIELDS) -> None:
        """``own_fields``: headers that prove to gateways and workers that a controller calls."""
        self._own_fields = own_fields
        self._changed = changed
        self.compared: dict[str, Verdict] = {}
        self.judged: dict[str, Verdict] = {}
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._gateways: Mapping[str, GatewayRecord] = {}
        self._observed: ObservedState | None = None

    def update(self, decision: Decision, observed: ObservedState) -> None:
        """Start and stop evaluations as the decision asks for."""
        self._gateways, self._observed = observed.gateways, observed
        record = decision.record
        identity = record.identity
        if decision.compares and record.compare is not None:
            self._begin(identity, "compare", lambda: self._compare(record, record.compare or CompareRule()))
        elif decision.observes and record.canary is not None:
            rule = record.canary
            self._begin(identity, f"step {record.step}", lambda: self._watch(record, rule))
        else:
            self._end(identity)
            self.judged.pop(identity, None)

    def keep_only(self, identities: set[str]) -> None:
        """Forget the rollouts that are over."""
        for identity in [identity for identity in self._tasks if identity not in identities]:
            self._end(identity)
        for verdicts in (self.compared, self.judged):
            for identity in [identity for identity in verdicts if identity not in identities]:
                del verdicts[identity]

    async def stop(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        for identity in list(self._tasks):
            self._end(identity)
        await asyncio.gather(*tasks, return_exceptions=True)
        self.compared.clear()
        self.judged.clear()

    def _begin(self, identity: str, what: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        known = self._tasks.get(identity)
        if known is not None and known[0] == what:
            return
        self._end(identity)
        self.judged.pop(identity, None)
        self._tasks[identity] = (what, asyncio.ensure_future(self._guarded(identity, work)))

    def _end(self, identity: str) -> None:
        known = self._tasks.pop(identity, None)
        if known is not None:
            known[1].cancel()

    async def _guarded(self, identity: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()
        except Exception as error:
            log.error("an evaluation failed unexpectedly", rollout=identity, exc_info=error)
            verdict = Verdict("stop", f"it could not be judged: {type(error).__name__}: {error}")
            self.compared[identity] = self.judged[identity] = verdict
            self._changed()

    # Canary.

    async def _watch(self, record: RolloutRecord, rule: CanaryRule) -> None:
        """Judge every model of the rollout; the worst judgement is the rollout's verdict."""
        tallies = {
            name: Tally(change.before, change.version) for name, change in record.changes.items() if change.is_new
        }
        looks = dict.fromkeys(tallies, 0)
        judgements: dict[str, Judgement] = {}
        began = time.monotonic()
        present = set(self._gateways)
        async with _client(self._own_fields) as client:
            while True:
                unreachable = []
                for name, gateway in list(self._gateways.items()):
                    reports = await _get(client, gateway, "/evaluations", dict[str, EvaluationReport])
                    if reports is None:
                        unreachable.append(name)
                    for model, tally in tallies.items():
                        tally.take(name, (reports or {}).get(model), joined=name not in present)
                seconds = time.monotonic() - began
                for model, tally in tallies.items():
                    if seconds < _SETTLE_SECONDS:
                        tally.forget_latencies()
                    judgement = judge(rule, *tally.figures(), seconds, looks[model])
                    judgements[model] = judgement
                    looks[model] = judgement.looks
                self.judged[record.identity] = _without(unreachable, "counts", _worst(judgements))
                self._changed()
                await asyncio.sleep(_READ)

    # Comparison.

    async def _compare(self, record: RolloutRecord, rule: CompareRule) -> None:
        findings = []
        for name, change in record.changes.items():
            if not change.before or not change.is_new:
                continue
            samples, unreachable = await self._samples(record.identity, name, rule)
            if len(samples) < rule.samples:
                shortage = f"{name}: {rule.samples} requests were to be compared"
                verdict = Verdict("stop", f"{shortage}, {len(samples)} came in {rule.timeout:g} s")
                self._report(record.identity, _without(unreachable, "samples", verdict))
                return
            comparison = await self._replay(name, change, samples[: rule.samples], rule)
            findings.append(f"{name}: {comparison}")
            if not comparison.passes(rule):
                self._report(record.identity, Verdict("stop", findings[-1]))
                return
        self._report(record.identity, Verdict("go", "; ".join(findings)))

    def _report(self, identity: str, verdict: Verdict) -> None:
        self.compared[identity] = verdict
        self._changed()

    async def _samples(self, identity: str, model: str, rule: CompareRule) -> tuple[list[Sample], list[str]]:
        """The samples, and the gateways that did not answer."""
        ends = time.monotonic() + rule.timeout
        found: dict[str, tuple[Sample, ...]] = {}
        async with _client(self._own_fields) as client:
            while True:
                unreachable = []
                for name, gateway in list(self._gateways.items()):
                    report = await _get(client, gateway, f"/samples/{quote(model, safe='')}", SampleReport)
                    if report is not None:
                        found[name] = report.samples
                    else:
                        unreachable.append(name)
                samples = [sample for each in found.values() for sample in each]
                if len(samples) >= rule.samples or time.monotonic() >= ends:
                    return samples, unreachable
                verdict = Verdict("wait", f"{model}: {len(samples)} of {rule.samples} requests gathered")
                self._report(identity, _without(unreachable, "samples", verdict))
                await asyncio.sleep(_READ)

    async def _replay(self, model: str, change: Change, samples: list[Sample], rule: CompareRule) -> Comparison:
        ends = time.monotonic() + rule.timeout
        while True:
            for worker in self._observed.assigned(model, change.pools).values() if self._observed is not None else ():
                if {change.before, change.version} <= set(worker.ready(model)):
                    versions = change.before, change.version
                    return await compare_versions(samples, worker.record, model, *versions, rule, self._own_fields)
            if time.monotonic() > ends:
                raise Unavailable(f"no worker has versions {change.before} and {change.version} of {model} at once")
            await asyncio.sleep(_READ)


def _worst(judgements: Mapping[str, Judgement]) -> Verdict:
    for kind, verdict in ((ROLL_BACK, "stop"), (WAIT, "wait"), (PROMOTE, "go")):
        reasons = [f"{model}: {each.reason}" for model, each in judgements.items() if each.kind == kind]
        if reasons:
            return Verdict(verdict, "; ".join(reasons))
    return Verdict("wait")


def _without(unreachable: Sequence[str], what: str, verdict: Verdict) -> Verdict:
    """The verdict with a note on gateways whose part is missing."""
    if not unreachable:
        return verdict
    missing = f"no {what} from gateway {', '.join(sorted(unreachable))}, whose metrics page does not answer"
    return Verdict(verdict.kind, f"{verdict.reason}; {missing}" if verdict.reason else missing)


def _client(own_fields: Mapping[str, str]) -> httpx.AsyncClient:
    transport = fleet_transport()
    return httpx.AsyncClient(timeout=_ANSWER_SECONDS, transport=transport, trust_env=False, headers=dict(own_fields))


async def _get(client: httpx.AsyncClient, gateway: GatewayRecord, path: str, kind: type[_Answer]) -> _Answer | None:
    """None: the gateway does not answer, or has no metrics port."""
    if gateway.metrics_port <= 0 or refuses(gateway.tls):
        return None
    try:
        headers = {control_token.HEADER: gateway.control_token}
        answer = await client.get(f"{gateway.metrics_url}{path}", headers=headers)
        return msgspec.json.decode(answer.content, type=kind) if answer.status_code == 200 else None
    except (httpx.HTTPError, OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
