"""The command lines of a fleet's processes in pods. Pure.

They are those of ``control.fleet.derived.engine_processes``, with names that the pod itself knows: the kubelet replaces
``$(POD_NAME)``. Settings that can change without a restart are not in them.
"""

from __future__ import annotations

from itertools import pairwise

from isochrone.control.fleet.derived.engine_processes import POD_DIRECTORY, processes_on
from isochrone.control.fleet.settings.process_names import controller_names, gateway_names
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import KUBERNETES

DIRECTORY = POD_DIRECTORY
#: The variable with the name of the pod.
POD_NAME = "POD_NAME"
#: Seconds for requests in flight when a process stops: the default of --exit-timeout-secs.
EXIT_SECONDS = 30.0

_JSON_LOGS = "--log-json"


def controller(fleet: Fleet) -> list[str]:
    return _in_pod(fleet, controller_names(fleet)[0])


def gateway(fleet: Fleet, group: str) -> list[str]:
    """The processes of a gateway share its pod."""
    spec = fleet.gateways[group]
    one = fleet.model_copy(update={"gateways": {**fleet.gateways, group: spec.model_copy(update={"processes": 1})}})
    words = _in_pod(one, gateway_names(fleet, group)[0])
    return words if spec.processes == 1 else [*words, "--processes", str(spec.processes)]


def worker(fleet: Fleet, pool: str) -> list[str]:
    # A pool may have no worker at the moment.
    one = fleet.pools[pool].model_copy(update={"workers": 1})
    return _in_pod(fleet.model_copy(update={"pools": {**fleet.pools, pool: one}}), f"{pool}-1")


def _in_pod(fleet: Fleet, process: str) -> list[str]:
    words = [_literal(word) for word in processes_on(KUBERNETES, fleet, DIRECTORY)[process].arguments]
    # The first is the fleet's: a pool's arguments follow.
    words[words.index("--name") + 1] = f"$({POD_NAME})"
    return [*(_named_by_pod(word, process) for word in words), _JSON_LOGS]


def _named_by_pod(word: str, process: str) -> str:
    """A flag of traces or of the access log that names the process."""
    for before, after in (("service.instance.id=", ""), ("/", ".access.log")):
        if word.startswith("--") and word.endswith(f"{before}{process}{after}"):
            return f"{word.removesuffix(f'{process}{after}')}$({POD_NAME}){after}"
    return word


def _literal(word: str) -> str:
    """A word that the kubelet does not expand."""
    return word.replace("$(", "$$(")


def exit_seconds(words: list[str]) -> float:
    """The time for requests in flight on a command line."""
    given = [*pairwise(words), *(word.split("=", 1) for word in words if "=" in word)]
    found = [value for flag, value in given if flag == "--exit-timeout-secs"]
    return float(found[-1]) if found else EXIT_SECONDS


def repositories(fleet: Fleet, pool: str) -> list[str]:
    """The model repositories on a worker's command line: absolute paths and URLs."""
    words = worker(fleet, pool)
    return words[1 : words.index("--host")]
