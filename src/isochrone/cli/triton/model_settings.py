"""Triton's flags about models: configurations, host policies, rate limits, defaults of backends."""

from __future__ import annotations

import os
import re
from pathlib import Path

from isochrone.cli.triton.command_line import BadFlag, GivenFlags
from isochrone.models.configuration.backends import BACKENDS, WITHOUT_INSTANCES
from isochrone.worker.catalog.load_settings import LoadSettings

#: By their names in configurations; ensembles and remote models have no settings.
_BACKENDS = {entry.names[0]: short for short, entry in BACKENDS.items() if short not in WITHOUT_INSTANCES}
#: Settings that models may also give as parameters; a model's own wins.
_PARAMETERS = {
    "onnx": (
        "intra_op_thread_count",
        "inter_op_thread_count",
        "execution_mode",
        "enable_mem_arena",
        "memory.enable_memory_pattern",
        "allow_spinning",
    ),
    "torch": ("reserved_sms",),
    "python": (),
}
_BATCH_SIZE = "default-max-batch-size"
_NODES = Path("/sys/devices/system/node")


def load_settings(given: GivenFlags) -> LoadSettings:
    name = given.text("model-config-name")
    if name and not re.fullmatch(r"[^\s/]+", name):
        raise BadFlag(f"--model-config-name: expected a file name without '.pbtxt' and without spaces, given {name!r}")
    sizes: dict[str, int] = {}
    parameters: dict[str, dict[str, str]] = {}
    for text in given.all("backend-config"):
        _backend_setting(text, sizes, parameters, given)
    return LoadSettings(
        config_name=name,
        namespacing=given.boolean("model-namespacing", False),
        threads=given.integer("model-load-thread-count", 1, minimum=1),
        retries=given.integer("model-load-retry-count", 0),
        assumed_batch_sizes=sizes,
        parameters=parameters,
        host_policies=_host_policies(given),
        rate_limits=_rate_limits(given),
        gpu_limits=_gpu_limits(given),
    )


def _backend_setting(
    text: str, sizes: dict[str, int], parameters: dict[str, dict[str, str]], given: GivenFlags
) -> None:
    # ``backend,setting=value``, or ``setting=value`` for every backend.
    before, equals, value = text.partition("=")
    named, comma, setting = before.rpartition(",")
    if not equals or not setting or (comma and not named):
        raise BadFlag(f"--backend-config: expected BACKEND,SETTING=VALUE or SETTING=VALUE, given {text!r}")
    if comma and named not in _BACKENDS:
        known = ", ".join(_BACKENDS)
        given.warnings.append(f"--backend-config {text} has no effect: the backends are {known}")
        return
    backend = _BACKENDS.get(named, "")
    if setting == _BATCH_SIZE:
        if not value.isdigit():
            raise BadFlag(f"--backend-config {_BATCH_SIZE}: expected an integer of at least 0, given {value!r}")
        sizes[backend] = int(value)
    elif setting in _PARAMETERS.get(backend, ()):
        parameters.setdefault(backend, {})[setting] = value
    else:
        given.warnings.append(f"--backend-config {text} has no effect: the setting has no counterpart here")


def _rate_limits(given: GivenFlags) -> dict[str, int] | None:
    mode = given.text("rate-limit", "off")
    if mode not in ("off", "execution_count"):
        raise BadFlag(f"--rate-limit: expected off or execution_count, given {mode!r}")
    limits: dict[str, int] = {}
    for text in given.all("rate-limit-resource"):
        # NAME:COUNT or NAME:COUNT:DEVICE; the host is the one device here.
        name, *numbers = text.split(":")
        if not name or len(numbers) not in (1, 2) or not all(number.isdigit() for number in numbers):
            raise BadFlag(f"--rate-limit-resource: expected NAME:COUNT or NAME:COUNT:DEVICE, given {text!r}")
        limits[name.lower()] = int(numbers[0])
    if limits and mode == "off":
        given.warnings.append("--rate-limit-resource has no effect without --rate-limit=execution_count")
    return limits if mode == "execution_count" else None


def _gpu_limits(given: GivenFlags) -> dict[int, float]:
    limits: dict[int, float] = {}
    for text in given.all("model-load-gpu-limit"):
        gpu, colon, fraction = text.partition(":")
        try:
            limit = float(fraction)
        except ValueError:
            limit = -1.0
        if not colon or not gpu.isdigit() or not 0 <= limit <= 1:
            raise BadFlag(f"--model-load-gpu-limit: expected GPU:FRACTION, as in 0:0.9, given {text!r}")
        limits[int(gpu)] = limit
    return limits


def _host_policies(given: GivenFlags) -> dict[str, tuple[int, ...]]:
    policies: dict[str, tuple[int, ...]] = {}
    for text in given.all("host-policy"):
        name, comma, rest = text.partition(",")
        setting, equals, value = rest.partition("=")
        if not comma or not equals or setting not in ("cpu-cores", "numa-node"):
            raise BadFlag(f"--host-policy: expected NAME,cpu-cores=RANGES or NAME,numa-node=NUMBER, given {text!r}")
        if setting == "numa-node":
            file = _NODES / f"node{value}" / "cpulist"
            if not value.isdigit() or not file.is_file():
                raise BadFlag(f"--host-policy {text}: expected the number of a NUMA node of this machine")
            value = file.read_text().strip()
        cpus = _cpus(value)
        usable = os.sched_getaffinity(0)
        if not cpus or not usable.issuperset(cpus):
            raise BadFlag(f"--host-policy {text}: expected CPUs out of {sorted(usable)}, as in 0-3,6")
        # Both settings of one policy hold: the CPUs that are in each.
        policies[name] = tuple(sorted(set(policies.get(name, cpus)) & set(cpus)))
        if not policies[name]:
            raise BadFlag(f"--host-policy {name}: no CPU is in both its cpu-cores and its numa-node")
    return policies


def _cpus(text: str) -> tuple[int, ...]:
    """``0-3,6``; empty when it is not of that form."""
    cpus: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())
        if found is None:
            return ()
        cpus.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(cpus))
