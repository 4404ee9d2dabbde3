"""A generator's loops over its connections: closed (so many in flight) and open (each request at its instant).

The latency of an open loop counts from the instant at which a request was due, so that a slow server cannot lighten its
own load. Both collect failures instead of ending at the first.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.gpu.load.links import Link, Links
from bench.gpu.load.messages import heading
from bench.worker.generator import Alarm, no_collection

#: Of calls that are still in flight when a loop is over.
_DRAIN_SECONDS = 10.0
#: An open loop keeps the body of one answer in so many, beyond the first ones.
_KEEP_EVERY = 997


@dataclass
class Outcome:
    """What one generator saw. Times in ns of the monotonic clock, which all processes of a machine share."""

    #: Of an open loop one entry per request; of a closed one, per answer that ended in the measured time.
    latencies_ns: np.ndarray
    seconds: float
    #: Share of a core.
    cpu_share: float
    answers: int = 0
    failed: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    #: Kind of the message and body of a sample of answers, the first ones among them.
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    verified: int = 0
    worst_deviation: float = 0.0
    # Of an open loop only, one entry per request.
    due_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    sent_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    #: 0: it failed.
    ended_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    versions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))


def closed_loop(
    links: Links,
    kinds: int,
    in_flight: int,
    start_ns: int,
    warm_seconds: float,
    seconds: float,
    *,
    rotate: bool,
    keep: int,
) -> Outcome:
    """``rotate``: a slot goes through all messages, otherwise it sends its own. ``keep``: answers whose bodies stay."""
    numbers = itertools.count(1)
    sent: list[tuple[int, int, int]] = [(0, 0, 0)] * in_flight
    steps = list(range(in_flight))
    found = Outcome(np.empty(0), seconds, 0.0)
    latencies: list[int] = []
    from_ns = start_ns + int(warm_seconds * 1e9)
    until_ns = from_ns + int(seconds * 1e9)

    def call(link: Link, slot: int, now: int) -> None:
        kind = steps[slot] % kinds if rotate else slot
        steps[slot] += 1
        number = next(numbers)
        sent[slot] = (now, kind, number)
        link.call(kind, number, slot)

    def end(link: Link) -> None:
        ended = link.receive()
        now = time.monotonic_ns()
        while ended:
            slot, body, problem = ended.popleft()
            began, kind, number = sent[slot]
            if not problem and (identity := heading(body)[1]) != b"%012d" % number:
                problem = f"expected the id {number:012d}, given {identity!r}"
            if problem:
                found.failed += 1
                found.problems[problem] += 1
            else:
                if from_ns <= now < until_ns:
                    found.answers += 1
                    latencies.append(now - began)
                if len(found.kept) < keep:
                    found.kept.append((kind, body))
            if now < until_ns and not link.broken:
                # From here on: what was done with the last answer is not part of this call.
                call(link, slot, time.monotonic_ns())
        links.flush(link)

    _sleep_until(start_ns)
    everything = links.all()
    cpu = 0.0
    with no_collection():
        for slot in range(in_flight):
            call(everything[slot % len(everything)], slot, time.monotonic_ns())
        for link in everything:
            links.flush(link)
        while any(link.in_flight for link in everything):
            now = time.monotonic_ns()
            if not cpu and now >= from_ns:
                cpu = time.process_time()
            if now > until_ns + _DRAIN_SECONDS * 1e9:
                _abandon(everything, found)
                break
            for file, _ in links.epoll.poll(1.0):
                if (ready := links.of(file)) is not None:
                    end(ready)
    found.cpu_share = (time.process_time() - cpu) / seconds if cpu else 0.0
    found.latencies_ns = np.array(latencies, np.int64)
    return found


def open_loop(
    links: Links, kinds: int, due_offsets_ns: list[int], start_ns: int, *, keep: int, first_kind: int = 0
) -> Outcome:
    """Each request at its instant, over the connections in turn; a broken connection is replaced."""
    count = len(due_offsets_ns)
    due = np.array(due_offsets_ns, np.int64) + start_ns
    instants: list[int] = due.tolist()
    sent, ended = np.zeros(count, np.int64), np.zeros(count, np.int64)
    versions = np.zeros(count, np.int8)
    found = Outcome(np.empty(0), 0.0, 0.0)
    everything = links.all()
    turn = itertools.cycle(range(len(everything)))

    def take(at: int) -> int:
        """What has arrived on a connection; how many calls ended with it."""
        link = everything[at]
        over = link.receive()
        now = time.monotonic_ns()
        taken = len(over)
        while over:
            number, body, problem = over.popleft()
            version, identity = heading(body) if not problem else (b"", b"")
            if not problem and identity != b"%012d" % number:
                problem = f"expected the id {number:012d}, given {identity!r}"
            if problem:
                found.failed += 1
                found.problems[problem] += 1
                continue
            ended[number] = now
            versions[number] = int(version)
            if len(found.kept) < keep or not number % _KEEP_EVERY:
                found.kept.append(((number + first_kind) % kinds, body))
        if link.broken and not link.in_flight:
            everything[at] = links.replace(link)
        else:
            links.flush(link)
        return taken

    alarm = Alarm()
    links.epoll.register(alarm.file)
    _sleep_until(start_ns - 1_000_000)
    cpu = time.process_time()
    upcoming = flying = 0
    give_up = (instants[-1] if instants else start_ns) + int(_DRAIN_SECONDS * 1e9)
    positions = {link.socket.fileno(): at for at, link in enumerate(everything)}
    try:
        with no_collection():
            while upcoming < count or flying:
                now = time.monotonic_ns()
                while upcoming < count and instants[upcoming] <= now:
                    link = everything[next(turn)]
                    if link.broken:
                        link = next((other for other in everything if not other.broken), link)
                    sent[upcoming] = now
                    link.call((upcoming + first_kind) % kinds, upcoming, upcoming)
                    links.flush(link)
                    upcoming += 1
                    flying += 1
                    now = time.monotonic_ns()
                if now > give_up:
                    _abandon(everything, found)
                    break
                if upcoming < count:
                    alarm.set(instants[upcoming])
                for file, _ in links.epoll.poll(0.5):
                    if file == alarm.file:
                        alarm.acknowledge()
                    elif (at := positions.get(file)) is not None:
                        flying -= take(at)
                        if everything[at].socket.fileno() != file:
                            positions = {link.socket.fileno(): place for place, link in enumerate(everything)}
    finally:
        alarm.close()
    found.seconds = (time.monotonic_ns() - start_ns) / 1e9
    found.cpu_share = (time.process_time() - cpu) / found.seconds
    found.due_ns, found.sent_ns, found.ended_ns, found.versions = due, sent, ended, versions
    good = ended > 0
    found.answers = int(good.sum())
    found.latencies_ns = (ended - due)[good]
    return found


def _abandon(links: list[Link], found: Outcome) -> None:
    for link in links:
        for ended in link.abandon(f"no answer within {_DRAIN_SECONDS:.0f} s after the end"):
            found.failed += 1
            found.problems[ended.problem] += 1


def _sleep_until(instant_ns: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
    while (left := instant_ns - clock()) > 0:
        time.sleep(left / 1e9)
