"""What is known of the machine. Read by ``reading``, judged by ``checks``. Immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stands for a value that could not be read; says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """Settings and counters of this process's network namespace."""

    somaxconn: int | Unknown
    tcp_fastopen: int | Unknown
    tcp_tw_reuse: int | Unknown
    tcp_slow_start_after_idle: int | Unknown
    #: First and last port that the kernel gives to outgoing connections.
    local_ports: tuple[int, int] | Unknown
    #: Sockets in TIME_WAIT now.
    time_wait: int | Unknown
    busy_read: int | Unknown
    busy_poll: int | Unknown
    #: Connections dropped since boot because the accept queue was full.
    listen_overflows: int | Unknown


@dataclass(frozen=True, slots=True)
class IdleState:
    """A C-state that the kernel may use. ``exit_us``: microseconds until the CPU runs again, as the driver says."""

    name: str
    exit_us: int
    disabled: bool


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """The limit of one control group, with its counters. ``cpus`` is None without a limit."""

    group: str
    cpus: float | None
    periods: int
    throttled_periods: int
    throttled_ms: float


@dataclass(frozen=True, slots=True)
class Interface:
    """A network card. ``interrupts``: by CPU, since boot. ``steered``: RPS spreads its packets over CPUs."""

    name: str
    interrupts: tuple[int, ...]
    receive_queues: int
    steered: bool


@dataclass(frozen=True, slots=True)
class CpuFacts:
    #: CPUs that this process may use.
    usable: frozenset[int]
    #: Governor by cpufreq policy.
    governors: Mapping[str, str] | Unknown
    idle_states: tuple[IdleState, ...] | Unknown
    #: CPUs by NUMA node.
    nodes: Mapping[int, frozenset[int]] | Unknown
    numa_balancing: int | Unknown
    interfaces: tuple[Interface, ...] | Unknown
    clock_source: str | Unknown
    clock_sources: tuple[str, ...] | Unknown
    #: From this process's control group up to the root; empty if none has a limit.
    quotas: tuple[CpuQuota, ...] | Unknown


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    huge_pages: str | Unknown
    huge_page_defrag: str | Unknown
    #: Times that an allocation waited for compaction, since boot.
    compaction_stalls: int | Unknown
    swap_total_kib: int | Unknown
    swap_free_kib: int | Unknown
    swappiness: int | Unknown
    #: Pages read back from swap since boot.
    swapped_in: int | Unknown


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """Limits of this process, which a server started the same way would have."""

    open_files: int
    open_files_machine: int | Unknown
    timer_slack_ns: int | Unknown


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    persistence: bool | Unknown
    mig: bool | Unknown
    #: Processes that compute on it now.
    processes: int | Unknown
    #: ``Default``, ``Exclusive_Process`` or ``Prohibited``.
    compute_mode: str | Unknown


@dataclass(frozen=True, slots=True)
class GpuFacts:
    #: Empty without a GPU; unknown if a driver is there but does not answer.
    gpus: tuple[Gpu, ...] | Unknown
    #: Whether the control daemon of MPS runs.
    mps: bool | Unknown
    #: Why an installed runtime cannot use a GPU, one sentence for each that cannot.
    unusable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    network: NetworkFacts
    cpu: CpuFacts
    memory: MemoryFacts
    limits: LimitFacts
    gpu: GpuFacts


@dataclass(frozen=True, slots=True)
class Times:
    """Median and 99th percentile of a measured time in microseconds."""

    median: float
    p99: float
    samples: int

    def __str__(self) -> str:
        return f"{_us(self.median)} µs (p99 {_us(self.p99)} µs)"


def _us(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Times taken on this machine, and what grew meanwhile. None: not measured."""

    #: From sending a byte to the moment when a process that slept in epoll runs.
    wake_up: Times | None = None
    #: The same while deep C-states are forbidden (/dev/cpu_dma_latency).
    wake_up_shallow: Times | None = None
    #: A request and its answer over loopback TCP.
    round_trip: Times | None = None
    #: From opening a connection to the first answer, without and with TCP fast open.
    first_answer: Times | None = None
    first_answer_fast_open: Times | None = None
    #: How much later than asked a sleep of 100 µs ends, with the current timer slack and with 1 ns.
    overshoot: Times | None = None
    overshoot_exact: Times | None = None
    #: A fixed piece of work, repeated without a pause and after 5 ms of sleep.
    work_warm: Times | None = None
    work_cold: Times | None = None
    #: The first write to fresh memory, as the machine is set and with small pages only.
    first_touch: Times | None = None
    first_touch_small: Times | None = None
    #: Nanoseconds of one reading of the monotonic clock.
    clock_read_ns: float | None = None
    #: Growth of the counters while the times were taken.
    listen_overflows: int | None = None
    swapped_in: int | None = None
    throttled_ms: float | None = None
    #: Times that could not be taken, each with the reason.
    failed: tuple[str, ...] = ()
