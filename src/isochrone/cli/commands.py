"""The commands of ``isochrone``, each imported only when it is used.

A worker must not pay for the simulator's imports: importing all commands takes a second of CPU, most single commands a
fifth of it. Every command's module has an ``app``: a Typer with one command or a group.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperGroup

from isochrone.cli.help_types import with_plain_types

#: Name → module and summary, in the order of the help. A new command is one line here.
COMMANDS = {
    "up": ("isochrone.cli.fleet.changing.up", "Start a whole fleet, here, on Ray or on Kubernetes; keep it running."),
    "init": ("isochrone.cli.files.init", "Write a first fleet.yaml for the models in a directory."),
    "validate": ("isochrone.cli.files.validate", "Check a fleet.yaml or a model repository; show every error."),
    "repository": (
        "isochrone.cli.files.repository",
        "Prepare a model repository for an object store or a web server.",
    ),
    "serve": ("isochrone.cli.processes.serve", "Serve the models of a repository: one worker."),
    "tritonserver": (
        "isochrone.cli.processes.serve",
        "The same as serve, for command lines that were written for Triton.",
    ),
    "gateway": (
        "isochrone.cli.processes.gateway",
        "Route requests to workers, by load and deadline.",
    ),
    "pick": ("isochrone.cli.processes.pick", "Choose workers for an Envoy that forwards requests itself."),
    "control": ("isochrone.cli.processes.control", "Run one controller of a fleet."),
    "apply": ("isochrone.cli.fleet.changing.apply", "Apply a fleet file; shows the plan first."),
    "status": ("isochrone.cli.fleet.inspecting.status", "Show the state of the fleet."),
    "top": ("isochrone.cli.top.command", "Show live figures of models, workers and gateways."),
    "slo": ("isochrone.cli.fleet.inspecting.slo", "Show error budgets of models and how fast they burn."),
    "why": ("isochrone.cli.why.command", "Explain one request: where its time went, and why."),
    "rollout": ("isochrone.cli.rollouts.rollout", "Change model versions atomically."),
    "canary": ("isochrone.cli.rollouts.canary", "Evaluate new versions on a part of traffic."),
    "drain": ("isochrone.cli.fleet.changing.drain", "Send no new work to a worker or gateway."),
    "undrain": ("isochrone.cli.fleet.changing.undrain", "Send work to a worker or gateway again."),
    "scale": ("isochrone.cli.fleet.changing.scale", "Set the number of workers of a pool."),
    "placement": ("isochrone.cli.placement.group", "Plan which models run on which workers, and explain it."),
    "forget": ("isochrone.cli.fleet.changing.forget", "Remove a dead gateway from the fleet's records."),
    "restore-epoch": (
        "isochrone.cli.fleet.changing.restore_epoch",
        "Rebuild the committed versions when their records are damaged or were put back.",
    ),
    "events": ("isochrone.cli.fleet.inspecting.events", "Show who changed what, when."),
    "audit": ("isochrone.cli.security.audit", "Show, verify and export audit logs."),
    "logs": ("isochrone.cli.fleet.inspecting.logs", "Print the logs of a fleet's processes on this machine."),
    "certs": ("isochrone.cli.security.certs", "Make and renew certificates of a development authority."),
    "infer": ("isochrone.cli.requests.infer", "Send one request and show where its time went."),
    "sign": ("isochrone.cli.security.sign", "Sign versions of a model, so that workers can require it."),
    "verify": ("isochrone.cli.security.verify", "Check the signatures of a repository's versions."),
    "encrypt": ("isochrone.cli.security.encrypt", "Encrypt versions of a model, or give them a new key."),
    "decrypt": ("isochrone.cli.security.decrypt", "Decrypt versions of a model in their repository."),
    "render": ("isochrone.cli.render.group", "Write files for other programs: Kubernetes, Envoy."),
    "partition": ("isochrone.cli.optimizing.partition", "Divide a model among a near and a far worker."),
    "auth": ("isochrone.cli.security.auth", "Make API tokens; explain who may do what."),
    "profile": (
        "isochrone.cli.optimizing.profile",
        "Measure a model; recommend instances, threads and batches for an SLO.",
    ),
    "bench": ("isochrone.cli.bench.group", "Measure a server under load; find the highest rate that keeps an SLO."),
    "doctor": ("isochrone.cli.doctor.command", "Find settings of this machine that cost latency; fix the safe ones."),
    "optimize": (
        "isochrone.cli.optimizing.optimize",
        "Change how a model is computed until it meets a budget.",
    ),
    "what-if": (
        "isochrone.cli.what_if.command",
        "Simulate the present fleet without a worker, with more load, with another policy.",
    ),
    "login": ("isochrone.cli.security.login", "Log in at the OpenID provider of a control API."),
    "logout": ("isochrone.cli.security.logout", "End logins and remove their tokens."),
    "simulate": ("isochrone.cli.simulate", "Simulate a fleet: policies, load and failures."),
}


@contextlib.contextmanager
def _kept_for_good() -> Iterator[None]:
    """What an import makes lives as long as the process: no collection looks at it, during the import or later.

    Those looks took an eighth of the CPU of a worker's start.
    """
    were_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if were_enabled:
            gc.enable()


class _Imported(MutableMapping[str, Any]):
    """Commands by name; looking a command up imports it."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            with _kept_for_good():
                self._made[name] = with_plain_types(typer.main.get_command(import_module(COMMANDS[name][0]).app))
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class CommandsOnDemand(TyperGroup):
    """The group of all commands; its help imports none of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Imported()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])
