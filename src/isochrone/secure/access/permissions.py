"""The permissions that roles give. Those of the protocol have the names of Triton's restricted APIs."""

from __future__ import annotations

from typing import Final

HEALTH: Final = "health"
METADATA: Final = "metadata"
INFERENCE: Final = "inference"
SHARED_MEMORY: Final = "shared-memory"
MODEL_CONFIG: Final = "model-config"
MODEL_REPOSITORY: Final = "model-repository"
STATISTICS: Final = "statistics"
TRACE: Final = "trace"
LOGGING: Final = "logging"
METRICS: Final = "metrics"
RECORDS: Final = "records"
FLEET_READ: Final = "fleet-read"
FLEET_CHANGE: Final = "fleet-change"
FLEET_ADMIN: Final = "fleet-admin"

#: Permission → what it covers, in the order of documents and help texts.
PERMISSIONS: Final = {
    HEALTH: "liveness and readiness of servers and models",
    METADATA: "metadata of servers and models, and the index of the repository",
    INFERENCE: "inference, generation and streams",
    SHARED_MEMORY: "registering, removing and listing shared-memory regions",
    MODEL_CONFIG: "configurations of models",
    MODEL_REPOSITORY: "loading and unloading models",
    STATISTICS: "statistics of models",
    TRACE: "reading and changing trace settings",
    LOGGING: "reading and changing log settings",
    METRICS: "metrics pages",
    RECORDS: "recorded requests: the flight recorder, samples, figures of agents",
    FLEET_READ: "reading a fleet's state over its control API",
    FLEET_CHANGE: "rollouts, canaries, draining and scaling",
    FLEET_ADMIN: "applying a fleet.yaml, forgetting processes, restoring the epoch",
}
#: Permissions that concern one model where a call names one.
OF_MODELS: Final = frozenset((METADATA, INFERENCE, MODEL_CONFIG, MODEL_REPOSITORY, STATISTICS, TRACE, HEALTH))

#: Roles that every access file has; a file may replace them by its own.
BUILT_IN: Final = {
    "caller": (HEALTH, METADATA, INFERENCE, MODEL_CONFIG),
    "gateway": (HEALTH, METADATA, STATISTICS, METRICS),
    "reader": (HEALTH, METADATA, MODEL_CONFIG, STATISTICS, METRICS, RECORDS, FLEET_READ),
    "operator": (
        HEALTH,
        METADATA,
        MODEL_CONFIG,
        STATISTICS,
        METRICS,
        RECORDS,
        MODEL_REPOSITORY,
        TRACE,
        LOGGING,
        FLEET_READ,
        FLEET_CHANGE,
    ),
    "admin": tuple(PERMISSIONS),
}
