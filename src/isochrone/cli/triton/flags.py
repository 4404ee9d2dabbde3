"""The table of tritonserver 2.51's flags and their treatment by ``isochrone serve``.

``command_line`` parses arguments by it, docs/triton-flags.md shows it, and a test compares it with the help of the real
binary. Data only. A flag without effect must be harmless; a flag that would change answers is implemented or refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Value(Enum):
    """The value of a flag."""

    NONE = "nothing"
    BOOLEAN = "true or false"
    INTEGER = "an integer"
    NUMBER = "a number"
    TEXT = "a value"


class Outcome(Enum):
    #: An option that ``isochrone serve`` declares under the same name.
    OWN = "own option"
    #: Takes effect; ``options`` gives it its meaning.
    TRANSLATED = "implemented"
    #: Accepted with one warning: it cannot change an answer.
    NO_EFFECT = "no effect"
    #: The server does not start with it.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    value: Value
    outcome: Outcome
    #: What it does here; for the last two outcomes, why it does nothing or is refused.
    text: str
    #: Values that ask for what happens anyway: neither a warning nor a refusal.
    silent: tuple[str, ...] = ()


_OWN, _DONE, _NONE, _NO = Outcome.OWN, Outcome.TRANSLATED, Outcome.NO_EFFECT, Outcome.REFUSED
_FLAG, _BOOL, _INT, _NUM, _TEXT = Value.NONE, Value.BOOLEAN, Value.INTEGER, Value.NUMBER, Value.TEXT

_GPU_MEMORY = (
    "there is no pool to size: each instance takes memory for tensors on their way when it is loaded, which"
    " isochrone_device_memory_bytes shows"
)
_PINGS = "HTTP/2 pings are answered and never sent; --idle-timeout closes idle connections"
_ONE_LOOP = "one event loop serves all connections; start more workers with --reuse-port to use more cores"
_COMPLETION = (
    "every configuration is validated; a configuration that Triton accepts in this mode is used unchanged, and parts"
    " missing from others are completed from the model's files and logged"
)
_SHARED_LIBRARIES = "no shared libraries are loaded from it"

FLAGS: tuple[Flag, ...] = (
    Flag("help", _FLAG, _OWN, "Show the options and exit."),
    # Server
    Flag("id", _TEXT, _DONE, "The server's name in its metadata; the same as --server-name."),
    Flag("exit-timeout-secs", _INT, _OWN, "Seconds that requests in flight get when the server stops."),
    # Logging
    Flag("log-verbose", _INT, _OWN, "1 logs what happens to models, 2 and above every request."),
    Flag("log-info", _BOOL, _DONE, "Log lines of level info."),
    Flag("log-warning", _BOOL, _DONE, "Log lines of level warning."),
    Flag("log-error", _BOOL, _DONE, "Log lines of level error."),
    Flag(
        "log-format",
        _TEXT,
        _DONE,
        "default (microseconds) or ISO8601 (seconds); --log-json chooses JSON lines instead.",
    ),
    Flag("log-file", _TEXT, _DONE, "Write the log to this file instead of stderr."),
    # Model repository
    Flag("model-store", _TEXT, _OWN, "The same as --model-repository."),
    Flag("model-repository", _TEXT, _OWN, "A model repository; may be repeated."),
    Flag("exit-on-error", _BOOL, _OWN, "Exit if a model fails to load at start."),
    Flag("disable-auto-complete-config", _FLAG, _NONE, _COMPLETION),
    Flag("strict-readiness", _BOOL, _OWN, "Ready only if every model is; always false in a fleet (--store)."),
    Flag("model-control-mode", _TEXT, _OWN, "none, explicit or poll."),
    Flag("repository-poll-secs", _INT, _OWN, "Seconds between looks at the repository in poll mode."),
    Flag("load-model", _TEXT, _OWN, "Model to load at start in explicit mode; may be repeated; * alone means all."),
    Flag(
        "model-config-name",
        _TEXT,
        _DONE,
        "Read configs/NAME.pbtxt of each model; config.pbtxt where a model has no such file.",
    ),
    Flag(
        "model-load-thread-count",
        _INT,
        _DONE,
        "Models that load at the same time at start. Default 1, where Triton has 4: warm-up measures how long a model"
        " takes, and a model that loads beside it would falsify that.",
    ),
    Flag("model-load-retry-count", _INT, _DONE, "How often a load that failed is tried again."),
    Flag(
        "model-namespacing",
        _BOOL,
        _DONE,
        "Models of one name in several repositories are served side by side: an ensemble's step means the model of the"
        " ensemble's own repository, and the plain name is ambiguous. Requests may say REPOSITORY::MODEL, with the name"
        " of the repository's directory, which Triton has no way to say.",
    ),
    Flag("enable-peer-access", _BOOL, _NONE, "the worker makes no copies between GPUs", ("false",)),
    # HTTP
    Flag("allow-http", _BOOL, _OWN, "Open the HTTP port."),
    Flag("http-address", _TEXT, _DONE, "Address of the HTTP port, and of /metrics unless --metrics-address is given."),
    Flag("http-port", _INT, _OWN, "The HTTP port; 0 picks a free one."),
    Flag("reuse-http-port", _BOOL, _DONE, "Let several servers share the HTTP port; --reuse-port shares all ports."),
    Flag(
        "http-header-forward-pattern",
        _TEXT,
        _DONE,
        "HTTP headers whose name matches become request parameters, with names in lower case; decoupled python models"
        " see them.",
    ),
    Flag("http-thread-count", _INT, _NONE, _ONE_LOOP),
    Flag(
        "http-restricted-api",
        _TEXT,
        _DONE,
        "API,API:HEADER=VALUE: these APIs need this header over HTTP; 403 without it. May be repeated.",
    ),
    # gRPC
    Flag("allow-grpc", _BOOL, _OWN, "Open the gRPC port."),
    Flag("grpc-address", _TEXT, _DONE, "Address of the gRPC port."),
    Flag("grpc-port", _INT, _OWN, "The gRPC port; 0 picks a free one."),
    Flag("reuse-grpc-port", _BOOL, _DONE, "Let several servers share the gRPC port; --reuse-port shares all ports."),
    Flag("grpc-header-forward-pattern", _TEXT, _DONE, "Metadata of gRPC calls whose name matches become parameters."),
    Flag("grpc-infer-allocation-pool-size", _INT, _NONE, "requests are decoded in place, so there is no pool to size"),
    Flag("grpc-use-ssl", _BOOL, _DONE, "TLS on the gRPC port; --tls-cert covers both ports."),
    Flag("grpc-use-ssl-mutual", _BOOL, _DONE, "The same, and clients need a certificate signed by --grpc-root-cert."),
    Flag("grpc-server-cert", _TEXT, _DONE, "PEM certificate for --grpc-use-ssl."),
    Flag("grpc-server-key", _TEXT, _DONE, "PEM key for --grpc-use-ssl."),
    Flag("grpc-root-cert", _TEXT, _DONE, "PEM certificate authority for --grpc-use-ssl-mutual."),
    Flag("grpc-infer-response-compression-level", _TEXT, _NONE, "gRPC responses are sent uncompressed", ("none",)),
    Flag("grpc-keepalive-time", _INT, _NONE, _PINGS),
    Flag("grpc-keepalive-timeout", _INT, _NONE, _PINGS),
    Flag("grpc-keepalive-permit-without-calls", _BOOL, _NONE, _PINGS, ("false",)),
    Flag("grpc-http2-max-pings-without-data", _INT, _NONE, _PINGS),
    Flag("grpc-http2-min-recv-ping-interval-without-data", _INT, _NONE, "clients may ping at any interval"),
    Flag("grpc-http2-max-ping-strikes", _INT, _NONE, "no ping counts as a strike"),
    Flag("grpc-max-connection-age", _INT, _NONE, "connections have no maximum age"),
    Flag("grpc-max-connection-age-grace", _INT, _NONE, "connections have no maximum age"),
    Flag(
        "grpc-restricted-protocol",
        _TEXT,
        _DONE,
        "API,API:KEY=VALUE: these APIs need metadata triton-grpc-protocol-KEY over gRPC. May be repeated.",
    ),
    # Sagemaker
    Flag("allow-sagemaker", _BOOL, _NO, "there is no SageMaker endpoint; use the HTTP port", ("false",)),
    Flag("sagemaker-port", _INT, _NONE, "there is no SageMaker endpoint"),
    Flag("sagemaker-safe-port-range", _TEXT, _NONE, "there is no SageMaker endpoint"),
    Flag("sagemaker-thread-count", _INT, _NONE, "there is no SageMaker endpoint"),
    # Vertex
    Flag("allow-vertex-ai", _BOOL, _NO, "there is no Vertex AI endpoint; use the HTTP port", ("false",)),
    Flag("vertex-ai-port", _INT, _NONE, "there is no Vertex AI endpoint"),
    Flag("vertex-ai-thread-count", _INT, _NONE, "there is no Vertex AI endpoint"),
    Flag("vertex-ai-default-model", _TEXT, _NONE, "there is no Vertex AI endpoint"),
    # Metrics
    Flag("allow-metrics", _BOOL, _OWN, "Open the port of /metrics."),
    Flag("allow-gpu-metrics", _BOOL, _DONE, "Show nv_gpu_* and nv_energy_consumption, where there is a GPU."),
    Flag("allow-cpu-metrics", _BOOL, _DONE, "Show nv_cpu_utilization and nv_cpu_memory_*."),
    Flag("metrics-address", _TEXT, _DONE, "Address of /metrics."),
    Flag("metrics-port", _INT, _OWN, "Port of /metrics; 0 picks a free one."),
    Flag(
        "metrics-interval-ms",
        _NUM,
        _DONE,
        "Milliseconds between two readings of the GPUs. Default 1000, as often as Triton reads them with its default of"
        " 2000. Everything else is read at each scrape.",
    ),
    Flag(
        "metrics-config",
        _TEXT,
        _NONE,
        "counters and isochrone_request_duration_seconds, a histogram by stage, are always exported; summaries are not",
        ("counter_latencies=true", "summary_latencies=false"),
    ),
    # Tracing
    Flag(
        "trace-config",
        _TEXT,
        _DONE,
        "Initial trace settings, as the trace API shows them. mode=opentelemetry with level=TIMESTAMPS exports traces"
        " over OTLP: opentelemetry,url and resource and bsp_* as in Triton; also protocol (http or grpc) and timeout"
        " (ms). The mode triton writes no file, and a warning says so.",
    ),
    # Backends
    Flag("backend-directory", _TEXT, _NONE, _SHARED_LIBRARIES),
    Flag(
        "backend-config",
        _TEXT,
        _DONE,
        "default-max-batch-size, for all backends or for one; onnxruntime: intra_op_thread_count,"
        " inter_op_thread_count and the backend's other parameters as defaults for models that do not set them;"
        " pytorch: reserved_sms, which divides GPUs. Other settings of known backends are accepted with a warning.",
    ),
    # Repository agents
    Flag("repoagent-directory", _TEXT, _NONE, _SHARED_LIBRARIES),
    # Response cache
    Flag("cache-config", _TEXT, _OWN, "local,size=BYTES: the response cache. Other caches are refused."),
    Flag("cache-directory", _TEXT, _NONE, _SHARED_LIBRARIES),
    # Rate limiter
    Flag(
        "rate-limit",
        _TEXT,
        _DONE,
        "execution_count: an instance runs when the resources of its group's rate_limiter are free, in the order of"
        " runs times priority. Sequence and decoupled models that ask for resources are refused. off: no limits.",
    ),
    Flag(
        "rate-limit-resource",
        _TEXT,
        _DONE,
        "NAME:COUNT: how much of a resource there is; without it, the most that one instance asks for. All instances"
        " run on the host, so a third part, the device, changes nothing.",
    ),
    # Memory and devices
    Flag(
        "pinned-memory-pool-byte-size",
        _INT,
        _NONE,
        "there is no pool to size: each instance on a GPU has its own pinned memory",
    ),
    Flag("cuda-memory-pool-byte-size", _TEXT, _NONE, _GPU_MEMORY),
    Flag("cuda-virtual-address-size", _TEXT, _NONE, _GPU_MEMORY),
    Flag("min-supported-compute-capability", _NUM, _NONE, "the model's runtime decides which GPUs it can use"),
    Flag(
        "buffer-manager-thread-count",
        _INT,
        _NONE,
        "large batches for a GPU are gathered by up to four threads, others by the thread that uses them",
    ),
    Flag(
        "host-policy",
        _TEXT,
        _DONE,
        "NAME,cpu-cores=RANGES or NAME,numa-node=N: the CPUs of instances whose group names this host_policy; cpu is"
        " the policy of groups that name none.",
    ),
    Flag(
        "model-load-gpu-limit",
        _TEXT,
        _DONE,
        "GPU:FRACTION: a torch or generating model that would bring the used memory of that GPU over this fraction of"
        " it, 0 to 1, fails to load.",
    ),
    # Deprecated by Triton
    Flag("strict-model-config", _BOOL, _NONE, _COMPLETION, ("false",)),
    Flag("response-cache-byte-size", _INT, _DONE, "The same as --cache-config local,size=BYTES."),
    Flag("trace-file", _TEXT, _DONE, "The same as --trace-config triton,file=PATH."),
    Flag("trace-level", _TEXT, _DONE, "The same as --trace-config level=LEVEL."),
    Flag("trace-rate", _INT, _DONE, "The same as --trace-config rate=RATE."),
    Flag("trace-count", _INT, _DONE, "The same as --trace-config count=COUNT."),
    Flag("trace-log-frequency", _INT, _DONE, "The same as --trace-config triton,log-frequency=COUNT."),
)

BY_NAME = {flag.name: flag for flag in FLAGS}
