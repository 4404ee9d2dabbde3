"""The leader's own work on rollouts that try a version out: watching a canary step, comparing outputs.

Reads the gateways' counts and samples over their metrics ports; what they mean is judged elsewhere. A leader that takes
over begins a step's counts anew: a step lasts longer then, and is judged by no less.
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
from isochrone.control.evaluation.judging import PROMOTE, ROLL_BACK, Verdict, judge
from isochrone.control.evaluation.replay import Comparison, compare_versions
from isochrone.control.rollout.decision import Decision
from isochrone.control.rollout.observed_state import Word, World
from isochrone.control.state.records import CanaryRule, Change, CompareRule, GatewayRecord, RolloutRecord
from isochrone.errors import Unavailable
from isochrone.gateway.sampling import Sample, SampleReport
from isochrone.gateway.trials import TrialReport
from isochrone.protocol.access import control_token

log = structlog.get_logger()
_Answer = TypeVar("_Answer")

#: Seconds between readings of the gateways' counts, and of their samples.
_READ = 0.5
_ANSWER_SECONDS = 3.0
#: Latencies of a step count from so long after its begin. Until then answers come from queues as the step before filled
#: them, longer ones for the old version: on a machine at its limit equal versions looked 11 and 22 % quicker.
_SETTLE_SECONDS = 2.0


class Trying:
    """By rollout. ``changed`` is called when there is a word."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.compared: dict[str, Word] = {}
        self.judged: dict[str, Word] = {}
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._gateways: Mapping[str, GatewayRecord] = {}
        self._world: World | None = None

    def follow(self, decision: Decision, world: World) -> None:
        """Has under way what a decision says should be."""
        self._gateways, self._world = world.gateways, world
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
        """The others are over."""
        for identity in [identity for identity in self._tasks if identity not in identities]:
            self._end(identity)
        for words in (self.compared, self.judged):
            for identity in [identity for identity in words if identity not in identities]:
                del words[identity]

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
            log.error("trying a version failed unexpectedly", rollout=identity, exc_info=error)
            word = Word("stop", f"it could not be judged: {type(error).__name__}: {error}")
            self.compared[identity] = self.judged[identity] = word
            self._changed()

    # Canary.

    async def _watch(self, record: RolloutRecord, rule: CanaryRule) -> None:
        """Every model of the rollout is judged; the worst verdict is the rollout's."""
        tallies = {
            name: Tally(change.before, change.version) for name, change in record.changes.items() if change.is_new
        }
        looks = dict.fromkeys(tallies, 0)
        verdicts: dict[str, Verdict] = {}
        began = time.monotonic()
        present = set(self._gateways)
        async with httpx.AsyncClient(timeout=_ANSWER_SECONDS, trust_env=False) as client:
            while True:
                silent = []
                for name, gateway in list(self._gateways.items()):
                    reports = await _get(client, gateway, "/trials", dict[str, TrialReport])
                    if reports is None:
                        silent.append(name)
                    for model, tally in tallies.items():
                        tally.take(name, (reports or {}).get(model), joined=name not in present)
                seconds = time.monotonic() - began
                for model, tally in tallies.items():
                    if seconds < _SETTLE_SECONDS:
                        tally.forget_latencies()
                    verdict = judge(rule, *tally.figures(), seconds, looks[model])
                    verdicts[model] = verdict
                    looks[model] = verdict.looks
                self.judged[record.identity] = _without(silent, "counts", _worst(verdicts))
                self._changed()
                await asyncio.sleep(_READ)

    # Comparison.

    async def _compare(self, record: RolloutRecord, rule: CompareRule) -> None:
        said = []
        for name, change in record.changes.items():
            if not change.before or not change.is_new:
                continue
            samples, silent = await self._samples(record.identity, name, rule)
            if len(samples) < rule.samples:
                wanted = f"{name}: {rule.samples} requests were to be compared"
                word = Word("stop", f"{wanted}, {len(samples)} came in {rule.timeout:g} s")
                self._say(record.identity, _without(silent, "samples", word))
                return
            comparison = await self._replay(name, change, samples[: rule.samples], rule)
            said.append(f"{name}: {comparison}")
            if not comparison.passes(rule):
                self._say(record.identity, Word("stop", said[-1]))
                return
        self._say(record.identity, Word("go", "; ".join(said)))

    def _say(self, identity: str, word: Word) -> None:
        self.compared[identity] = word
        self._changed()

    async def _samples(self, identity: str, model: str, rule: CompareRule) -> tuple[list[Sample], list[str]]:
        """Those gathered, and the gateways that gave none since they did not answer."""
        ends = time.monotonic() + rule.timeout
        found: dict[str, tuple[Sample, ...]] = {}
        async with httpx.AsyncClient(timeout=_ANSWER_SECONDS, trust_env=False) as client:
            while True:
                silent = []
                for name, gateway in list(self._gateways.items()):
                    report = await _get(client, gateway, f"/samples/{quote(model, safe='')}", SampleReport)
                    if report is not None:
                        found[name] = report.samples
                    else:
                        silent.append(name)
                samples = [sample for each in found.values() for sample in each]
                if len(samples) >= rule.samples or time.monotonic() >= ends:
                    return samples, silent
                word = Word("wait", f"{model}: {len(samples)} of {rule.samples} requests gathered")
                self._say(identity, _without(silent, "samples", word))
                await asyncio.sleep(_READ)

    async def _replay(self, model: str, change: Change, samples: list[Sample], rule: CompareRule) -> Comparison:
        ends = time.monotonic() + rule.timeout
        while True:
            for worker in self._world.of_pools(change.pools).values() if self._world is not None else ():
                if {change.before, change.version} <= set(worker.ready(model)):
                    return await compare_versions(samples, worker.record, model, change.before, change.version, rule)
            if time.monotonic() > ends:
                raise Unavailable(f"no worker has versions {change.before} and {change.version} of {model} at once")
            await asyncio.sleep(_READ)


def _worst(verdicts: Mapping[str, Verdict]) -> Word:
    for kind, word in ((ROLL_BACK, "stop"), ("wait", "wait"), (PROMOTE, "go")):
        said = [f"{model}: {verdict.reason}" for model, verdict in verdicts.items() if verdict.kind == kind]
        if said:
            return Word(word, "; ".join(said))
    return Word("wait")


def _without(silent: Sequence[str], what: str, word: Word) -> Word:
    """A word that says whose part is missing in it."""
    if not silent:
        return word
    missing = f"no {what} from gateway {', '.join(sorted(silent))}, which answers on no metrics page"
    return Word(word.kind, f"{word.reason}; {missing}" if word.reason else missing)


async def _get(client: httpx.AsyncClient, gateway: GatewayRecord, path: str, kind: type[_Answer]) -> _Answer | None:
    """None: it does not answer now, or has no page that could."""
    if gateway.metrics_port <= 0:
        return None
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    try:
        headers = {control_token.HEADER: gateway.control_token}
        answer = await client.get(f"http://{host}:{gateway.metrics_port}{path}", headers=headers)
        return msgspec.json.decode(answer.content, type=kind) if answer.status_code == 200 else None
    except (httpx.HTTPError, OSError, msgspec.MsgspecError):
        return None
