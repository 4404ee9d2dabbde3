"""The members of a gateway's fleet, each with its monitor: who joins is watched, who leaves finishes what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.fleet.member import Member
from isochrone.gateway.housekeeping import Housekeeping
from isochrone.gateway.monitoring.indexes import Indexes
from isochrone.gateway.monitoring.monitor import Monitor, MonitorRules
from isochrone.gateway.replicas import Endpoint
from isochrone.gateway.resilience.outliers import Outliers
from isochrone.gateway.upstream.addresses import Upstream

log = structlog.get_logger(__name__)

#: Workers asked for their index at a time, how often that is done at most, and seconds after which one that hangs no
#: longer keeps the others waiting.
_FEWEST_AT_A_TIME, _MOST_TIMES, _PAUSE_FOR_HANGING = 4, 25, 0.01


class MonitoredMembers:
    """All members of ``fleet``. Calls ``lost`` with one that is not healthy any more, and ``left`` for one removed."""

    def __init__(
        self,
        fleet: Fleet,
        outliers: Outliers,
        rules: MonitorRules,
        housekeeping: Housekeeping,
        lost: Callable[[Member], None],
        left: Callable[[], None],
        clock: Callable[[], int],
    ) -> None:
        self._fleet = fleet
        self._outliers = outliers
        self._rules = rules
        self._lost = lost
        self._left = left
        self._clock = clock
        self._monitors: dict[str, Monitor] = {}
        self._indexes = Indexes(housekeeping)
        #: By source: what it last named.
        self._named: dict[str, tuple[Upstream, ...]] = {}
        self._tasks = BackgroundTasks()

    def set_upstreams(self, source: str, upstreams: Sequence[Upstream]) -> None:
        """One source's upstreams are these from now on."""
        self._named[source] = tuple(upstreams)
        new, gone = self._fleet.set_members(upstream for named in self._named.values() for upstream in named)
        for member in gone:
            monitor = self._monitors.pop(member.upstream.address)
            self._left()
            self._tasks.start(self._retire(member, monitor))
        for number, member in enumerate(new):
            # One after the other: a pool that joins must not be asked in one turn of the loop.
            delay = number / self._rules.most_per_second
            self._monitors[member.upstream.address] = Monitor(
                member, self._fleet, self._rules, self._lost, self._indexes, delay
            )
        self._outliers.endpoints_changed((member.endpoint for member in self._fleet.members.values()), self._clock())
        if new or gone:
            log.info(
                "upstreams changed",
                added=[member.upstream.address for member in new],
                removed=[member.upstream.address for member in gone],
            )

    async def _retire(self, member: Member, monitor: Monitor) -> None:
        """A member that was removed finishes what it has; nothing new goes there."""
        await monitor.stop()
        for _ in range(600):
            if not member.endpoint.in_flight:
                break
            await asyncio.sleep(0.1)
        member.close()

    def look_now(self) -> None:
        """A control call may have changed what is served."""
        for monitor in self._monitors.values():
            monitor.look_now()

    async def read_indexes(self, seconds: float) -> None:
        """Returns when it is known what every worker serves now, or after so long: one may be hanging."""
        monitors = list(self._monitors.values())
        # A few at a time: their answers may be long, and must not all come in the same turn of the loop.
        few = max(_FEWEST_AT_A_TIME, len(monitors) // _MOST_TIMES)
        late: set[asyncio.Future[None]] = set()
        ends = asyncio.get_running_loop().time() + seconds
        for start in range(0, len(monitors), few):
            late |= {asyncio.ensure_future(monitor.read_index()) for monitor in monitors[start : start + few]}
            _, late = await asyncio.wait(late, timeout=_PAUSE_FOR_HANGING)
        if late:
            _, late = await asyncio.wait(late, timeout=max(0.0, ends - asyncio.get_running_loop().time()))
            for task in late:
                task.cancel()

    def look_at(self, address: str, now: int) -> None:
        """A worker answered as if it served something else than is known here."""
        monitor = self._monitors.get(address)
        if monitor is not None:
            monitor.look_soon(now)

    def process_gone(self, endpoint: Endpoint) -> None:
        """A check has found that the process of an endpoint is gone."""
        monitor = self._monitors.get(endpoint.address)
        if monitor is not None and endpoint.handle is self._fleet.members.get(endpoint.address):
            monitor.process_gone()

    async def close(self) -> None:
        self._tasks.cancel()
        await asyncio.gather(*(monitor.stop() for monitor in self._monitors.values()))
        await self._indexes.close()
        for member in self._fleet.members.values():
            member.close()
