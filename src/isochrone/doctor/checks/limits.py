"""Checks of a process's limits: open files, timer slack."""

from __future__ import annotations

import resource

from isochrone.doctor.checks.check import Check, compared, unknown
from isochrone.doctor.facts import Facts, Measured, Unknown
from isochrone.doctor.findings import Finding, Severity
from isochrone.settings.wire_limits import WireLimits

_FILES_DOC = "https://man7.org/linux/man-pages/man2/getrlimit.2.html"
_SLACK_DOC = "https://man7.org/linux/man-pages/man2/PR_SET_TIMERSLACK.2const.html"
#: Files of a process beside the connections of callers: connections to workers, models, logs, shared memory.
_OTHER_FILES = 1024
#: Below this, a few hundred agents with some connections each reach the limit.
_FEW_FILES = 4096
#: The kernel's default, in nanoseconds.
_DEFAULT_SLACK = 50_000


def open_files(facts: Facts, measured: Measured) -> Finding:
    limit, machine = facts.limits.open_files, facts.limits.open_files_machine
    connections = WireLimits().max_connections
    needed = connections + _OTHER_FILES
    wanted = 1 << needed.bit_length()
    if limit == resource.RLIM_INFINITY or limit >= needed:
        text = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        if not isinstance(machine, Unknown) and machine < needed:
            return Finding(
                "open_files",
                Severity.COSTS,
                f"fs.file-max is {machine}, for all processes of the machine; one server may need {needed}",
                "Without a free file, new connections are closed immediately.",
                by_hand=(f"sysctl -w fs.file-max={16 * wanted}",),
                source=_FILES_DOC,
            )
        return Finding("open_files", Severity.OK, f"hard limit of open files: {text}", source=_FILES_DOC)
    return Finding(
        "open_files",
        Severity.COSTS if limit < _FEW_FILES else Severity.ADVICE,
        f"hard limit of open files: {limit}; max_connections ({connections}) and others need {needed}",
        "A server at this limit closes new connections immediately, instead of answering 503. Servers raise their soft"
        " limit to the hard one themselves.",
        # A limit belongs to a process: --fix could only change its own.
        by_hand=(
            f"systemd unit: LimitNOFILE={wanted}",
            f"docker run --ulimit nofile={wanted}:{wanted}",
            f"isochrone serve MODELS --max-connections {max(1, limit - _OTHER_FILES)}",
        ),
        source=_FILES_DOC,
    )


def timer_slack(facts: Facts, measured: Measured) -> Finding:
    effect = compared("a sleep ends late by", measured.overshoot, "with 1 ns of slack by", measured.overshoot_exact)
    slack = facts.limits.timer_slack_ns
    if isinstance(slack, Unknown):
        return unknown("timer_slack", slack, effect, _SLACK_DOC)
    found = f"timer slack of this process: {slack / 1000:g} µs"
    if slack < _DEFAULT_SLACK:
        return Finding("timer_slack", Severity.OK, found, effect=effect, source=_SLACK_DOC)
    return Finding(
        "timer_slack",
        Severity.COSTS if slack > _DEFAULT_SLACK else Severity.ADVICE,
        found,
        "The kernel may delay timers of the event loop (time-outs, hedges, retries) and sleeps of Python models by"
        " this. Queue delays of batches are not affected: they use timerfd.",
        effect,
        # Inherited from the parent process: it is set where servers are started.
        by_hand=("systemd unit: TimerSlackNSec=1us",),
        source=_SLACK_DOC,
    )


CHECKS: tuple[Check, ...] = (open_files, timer_slack)
