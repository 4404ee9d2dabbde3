"""The ranks of one parallel instance, as rank 0 sees them: starts the others, gives orders, waits for every report.

Rank 0 begins the next order when all ranks have reported on the last: no two batches meet in a collective. The end of a
rank, a rank out of step, or one that does not report, ends the instance as a whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from isochrone.errors import ConfigError, ModelFailed
from isochrone.worker.backends.interface import InstanceLost
from isochrone.worker.backends.processes.child import ChildProcess, Spawner, polled
from isochrone.worker.backends.processes.shared_block import SharedBlock
from isochrone.worker.backends.torch.parallel import messages
from isochrone.worker.backends.torch.parallel.failures import ends_instance, first_failure
from isochrone.worker.backends.torch.parallel.layout import Layout
from isochrone.worker.backends.torch.parallel.messages import Close, Failure, Order
from isochrone.worker.backends.torch.parallel.own_thread import OwnThread

_MODULE = "isochrone.worker.backends.torch.parallel.rank_main"
#: After the first failure of a batch: time for the other ranks to fail alike, or to finish.
_GRACE_SECONDS = 5.0
#: After a failed connection: time in which the end of its other side shows.
_DEATH_MILLISECONDS = 500
#: For ranks that are closed.
_CLOSE_MILLISECONDS = 2000


class RankGroup:
    """Rank 0 and its child processes. An ``InstanceLost`` that it raises is its last."""

    def __init__(self, label: str, layout: Layout, timeout_seconds: float) -> None:
        self._label = label
        self._layout = layout
        self._timeout = timeout_seconds
        #: The file in which ranks find each other.
        self.store = SharedBlock.create("isochrone-ranks")
        self._spawner = Spawner("ranks")
        self._own = OwnThread("rank-0")
        self._processes: dict[int, ChildProcess] = {}
        #: Held while an order is carried out, and from then on if the instance is lost.
        self._busy = threading.Lock()
        self._closed = os.eventfd(0, os.EFD_CLOEXEC)
        self._watcher: threading.Thread | None = None
        try:
            for rank in range(1, layout.ranks):
                self._processes[rank] = ChildProcess(self._spawner, _MODULE, 1, [self.store])
        except OSError as error:
            self.end()
            raise ModelFailed(f"{label}: the process of a rank cannot be started: {error}") from error

    def load(self, order_of: Callable[[int], Order], own: Callable[[], Any]) -> None:
        """An order of the load, which may take long. The first failure is raised; then the group has to be ended."""
        failures = self._finished(order_of, own, is_load=True)
        if failures:
            raise _error_of(self._label, first_failure(failures))

    def carry_out(self, order_of: Callable[[int], Order], own: Callable[[], Any]) -> Any:
        """Gives each rank its order, and runs ``own``, rank 0's part; the result of that.

        Raises the error of the model if the ranks failed alike, ``InstanceLost`` if the instance has to end.
        """
        self._busy.acquire()
        try:
            failures = self._finished(order_of, own)
        except InstanceLost:
            # The lock is kept: this process ends, and the watcher must not end it before the error is sent.
            raise
        except BaseException:
            self._busy.release()
            raise
        if failures and ends_instance(self._layout, failures):
            raise self._out_of_step(failures)
        self._busy.release()
        if failures:
            raise _error_of(self._label, first_failure(failures))
        # Not kept until the next batch.
        result, self._own.result = self._own.result, None
        return result

    def watch(self, report: Callable[[InstanceLost], None]) -> None:
        """From now on, the end of a rank between two orders is reported, and ends this process."""
        self._watcher = threading.Thread(target=self._watch, args=(report,), name="rank-watcher", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """Lets the other ranks end, and ends those that do not."""
        self._stop_watching()
        for process in self._processes.values():
            try:
                messages.send(process.links[0], Close())
            except messages.Disconnected:
                pass
        ends = monotonic() + _CLOSE_MILLISECONDS / 1000
        for process in self._processes.values():
            process.has_died(max(0, int(1000 * (ends - monotonic()))))
        self.end()

    def end(self) -> None:
        """Kills the other ranks."""
        self._stop_watching()
        for process in self._processes.values():
            process.end()
            process.release()
        self._processes.clear()
        self._spawner.close()

    def _stop_watching(self) -> None:
        os.eventfd_write(self._closed, 1)
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None

    def _finished(
        self, order_of: Callable[[int], Order], own: Callable[[], Any], *, is_load: bool = False
    ) -> dict[int, Failure]:
        """Every rank has finished, or failed; of a load, one has failed."""
        failures: dict[int, Failure] = {}
        for rank, process in self._processes.items():
            try:
                messages.send(process.links[0], order_of(rank))
            except messages.Disconnected as error:
                raise self._lost(rank, str(error)) from None
        self._own.begin(own)
        links = {process.links[0].fileno(): rank for rank, process in self._processes.items()}
        deaths = {process.death: rank for rank, process in self._processes.items()}
        awaited = {0, *self._processes}
        poll = polled(self._own.finished, *links, *deaths)
        ends: float | None = None
        while awaited:
            limit = None if ends is None else max(0, int(1000 * (ends - monotonic())))
            ready = [descriptor for descriptor, _ in poll.poll(limit)]
            # A report that is there already says more than the end of the rank that sent it.
            for descriptor in (each for each in ready if each in links):
                rank = links[descriptor]
                try:
                    report = messages.receive_report(self._processes[rank].links[0])
                except messages.Disconnected as error:
                    raise self._lost(rank, str(error)) from None
                awaited.discard(rank)
                if report.failure is not None:
                    failures[rank] = report.failure
            for descriptor in ready:
                if descriptor in deaths:
                    raise self._lost(deaths[descriptor], "it has ended", failures)
            if self._own.finished in ready:
                self._own.take()
                awaited.discard(0)
                if self._own.error is not None:
                    failures[0] = _own_failure(self._own.error)
            if is_load:
                if failures:
                    return failures
                continue
            if not ready:
                raise InstanceLost(self._label, self._stuck(awaited, failures))
            if awaited and any(failure.is_fatal for failure in failures.values()):
                raise self._out_of_step(failures)
            if ends is None and (failures or 0 not in awaited):
                ends = monotonic() + (min(_GRACE_SECONDS, self._timeout) if failures else self._timeout)
            elif failures and ends is not None:
                ends = min(ends, monotonic() + _GRACE_SECONDS)
        return failures

    def _lost(self, rank: int, reason: str, failures: dict[int, Failure] | None = None) -> InstanceLost:
        how = f"{self._layout.describe(rank)}: {self._processes[rank].cause_of_death(reason)}"
        if failures:
            how += f"; before, {self._described(failures)}"
        return InstanceLost(self._label, how)

    def _out_of_step(self, failures: dict[int, Failure]) -> InstanceLost:
        """If a rank has died, that is why others failed: their connections close a moment before it has ended."""
        if any(failure.is_fatal for failure in failures.values()):
            deaths = {process.death: rank for rank, process in self._processes.items()}
            for descriptor, _ in polled(*deaths).poll(_DEATH_MILLISECONDS):
                return self._lost(deaths[descriptor], "it has ended")
        return InstanceLost(self._label, self._described(failures))

    def _stuck(self, awaited: set[int], failures: dict[int, Failure]) -> str:
        late = self._layout.describe(min(awaited))
        if failures:
            return f"{self._described(failures)}; {late} did not finish its part"
        return f"{late} did not finish its part within {self._timeout:g} s (collective_timeout_seconds)"

    def _described(self, failures: dict[int, Failure]) -> str:
        failure = first_failure(failures)
        rank = next(rank for rank, each in failures.items() if each is failure)
        return f"{self._layout.describe(rank)} failed: {failure.message}"

    def _watch(self, report: Callable[[InstanceLost], None]) -> None:
        deaths = {process.death: rank for rank, process in self._processes.items()}
        ready = [descriptor for descriptor, _ in polled(self._closed, *deaths).poll()]
        if self._closed in ready:
            return
        with self._busy:
            report(self._lost(deaths[ready[0]], "it has ended"))
            # The other ranks end with this process.
            os._exit(1)


def _own_failure(error: BaseException) -> Failure:
    from isochrone.worker.backends.torch.parallel.rank import rank_failure

    return rank_failure(error)


def _error_of(label: str, failure: Failure) -> ModelFailed | ConfigError:
    if len(failure.config) == 4:
        return ConfigError(*failure.config)
    error = ModelFailed(failure.message if failure.message.startswith(label) else f"{label}: {failure.message}")
    error.add_note(failure.traceback)
    return error
