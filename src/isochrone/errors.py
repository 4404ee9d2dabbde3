"""The errors that a caller can see, as one tree.

Each class has a stable ``code`` (for logs and metrics) and the HTTP and gRPC statuses of the answer. The transports
read these attributes; this module knows no transport. A few packages subclass them for errors of their own, with the
statuses given here. What the wire rejects before a request is whole (limits of size, time and connections) has a status
and no class.

    IsochroneError
    ├── InvalidArgument          400  INVALID_ARGUMENT     an invalid request or file
    │   ├── ConfigError          400  INVALID_ARGUMENT     a configuration file: names file, key, expected, given
    │   │   ├── FlagError        400  INVALID_ARGUMENT     an option of a command line: names flag, expected, given
    │   │   └── NoVersion        400  INVALID_ARGUMENT     a version policy that selects no version
    │   ├── MalformedRequest     400  INVALID_ARGUMENT     bytes that do not parse
    │   └── RejectedParameter    400  INVALID_ARGUMENT     a request parameter that its model does not take
    ├── AlreadyExists            400  ALREADY_EXISTS
    ├── Cancelled                400  CANCELLED            the caller disconnected or cancelled
    ├── Unauthenticated          401  UNAUTHENTICATED      no credential of the caller, or not a valid one
    ├── PermissionDenied         403  PERMISSION_DENIED    not allowed for this caller
    ├── Restricted               403  UNAVAILABLE          the header that an API requires is missing
    ├── NotFound                 404  NOT_FOUND
    ├── MethodNotAllowed         405  UNIMPLEMENTED
    ├── PayloadTooLarge          413  RESOURCE_EXHAUSTED   over a size limit; the message names the limit
    ├── Quarantined              422  FAILED_PRECONDITION  such requests ended two worker processes; do not retry
    ├── QueueFull                429  RESOURCE_EXHAUSTED   over a queue limit; retry elsewhere
    ├── Internal                 500  INTERNAL             a bug in the server, or a failed model
    │   ├── ModelFailed          500  INTERNAL             the model's code or runtime raised
    │   └── FetchFailed          500  INTERNAL             a model's files could not be fetched, for now
    ├── Unsupported              501  UNIMPLEMENTED
    │   └── UnsupportedEncoding  415  UNIMPLEMENTED        a content encoding whose package is not installed
    ├── Unavailable              503  UNAVAILABLE          temporarily: loading, unloading, stopping
    │   ├── NoWorkerReady        503  UNAVAILABLE          no worker can take requests for the model now
    │   └── ConnectionLost       503  UNAVAILABLE          a server closed before its answer was complete
    └── DeadlineExceeded         504  DEADLINE_EXCEEDED    the deadline has passed or cannot be met
"""

from __future__ import annotations

from typing import Self

# gRPC status codes (https://grpc.github.io/grpc/core/md_doc_statuscodes.html), without a dependency on grpcio.
GRPC_CANCELLED = 1
GRPC_INVALID_ARGUMENT = 3
GRPC_DEADLINE_EXCEEDED = 4
GRPC_NOT_FOUND = 5
GRPC_ALREADY_EXISTS = 6
GRPC_PERMISSION_DENIED = 7
GRPC_RESOURCE_EXHAUSTED = 8
GRPC_FAILED_PRECONDITION = 9
GRPC_UNIMPLEMENTED = 12
GRPC_INTERNAL = 13
GRPC_UNAVAILABLE = 14
GRPC_UNAUTHENTICATED = 16

#: Largest length of an error message in characters. A model's traceback fits.
MAX_MESSAGE = 4096


class IsochroneError(Exception):
    """The base class of errors that reach a caller."""

    code: str = "internal"
    http_status: int = 500
    grpc_status: int = GRPC_INTERNAL
    #: Nothing of the request has run: sending it elsewhere repeats nothing. Set by ``not_begun``.
    unprocessed: bool = False
    #: Of an error that a client received: the server's status, as in "HTTP 429"; the id of the request; the seconds
    #: after which the server asks to try again (0: it says nothing).
    status: str = ""
    request_id: str = ""
    retry_after: float = 0.0
    #: Connections that broke while a server had the request: each of the servers may have died, perhaps by it.
    losses: int = 0

    @property
    def message(self) -> str:
        """The message for the caller. Its length is bounded, since errors may quote the caller's input."""
        text = str(self)
        return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}… ({len(text)} characters)"

    def within(self, context: str, separator: str = ": ") -> IsochroneError:
        """The same error, its text prefixed by ``context``."""
        error = type(self).__new__(type(self))
        error.__dict__.update(self.__dict__)
        error.args = (f"{context}{separator}{self}",)
        return error

    def not_begun(self) -> Self:
        """Mark the error of a request of which nothing has run."""
        self.unprocessed = True
        return self

    def begun(self) -> IsochroneError:
        """The same error of a request of which a part may have run."""
        if not self.unprocessed:
            return self
        error = self.within("", "")
        error.unprocessed = False
        return error


class InvalidArgument(IsochroneError):
    code = "invalid_argument"
    http_status = 400
    grpc_status = GRPC_INVALID_ARGUMENT


class ConfigError(InvalidArgument):
    """An error in a configuration: names the place, the key, the expected and the given value.

    ``where`` is a file or another source, ``key`` the dotted path inside it.
    """

    code = "config"

    def __init__(self, where: str, key: str, expected: str, given: str) -> None:
        self.where, self.key, self.expected, self.given = where, key, expected, given
        super().__init__(f"{where}: {key}: expected {expected}, given {given}")


class FlagError(ConfigError):
    """An error in an option of a command line: ``where`` is the flag, and there is no key inside it."""

    def __init__(self, flag: str, expected: str, given: str) -> None:
        super().__init__(flag, "", expected, given)
        self.args = (f"{flag}: expected {expected}, given {given}",)


class NoVersion(ConfigError):
    """Triton's message, on which clients may rely, followed by the key to change."""

    def __init__(self, model: str, where: str, key: str, expected: str, given: str) -> None:
        super().__init__(where, key, expected, given)
        self.args = (f"at least one version must be available under the version policy of model '{model}'; {self}",)


class MalformedRequest(InvalidArgument):
    code = "malformed"


class RejectedParameter(InvalidArgument):
    """A value of a request parameter that the model does not take. Fronts have their own names for some parameters."""

    def __init__(self, where: str, parameter: str, expected: str, given: str) -> None:
        """``where`` stands before the parameter's name."""
        self.parameter, self.expected, self.given = parameter, expected, given
        super().__init__(f"{where}parameter '{parameter}': expected {expected}, given {given}")


class AlreadyExists(IsochroneError):
    code = "already_exists"
    http_status = 400
    grpc_status = GRPC_ALREADY_EXISTS


class Cancelled(IsochroneError):
    code = "cancelled"
    http_status = 400
    grpc_status = GRPC_CANCELLED


class Restricted(IsochroneError):
    """The statuses are Triton's."""

    code = "restricted"
    http_status = 403
    grpc_status = GRPC_UNAVAILABLE


class NotFound(IsochroneError):
    code = "not_found"
    http_status = 404
    grpc_status = GRPC_NOT_FOUND


class Unauthenticated(IsochroneError):
    """The credential proves nothing, or there is none where one is needed."""

    code = "unauthenticated"
    http_status = 401
    grpc_status = GRPC_UNAUTHENTICATED


class PermissionDenied(IsochroneError):
    code = "permission_denied"
    http_status = 403
    grpc_status = GRPC_PERMISSION_DENIED


class MethodNotAllowed(IsochroneError):
    code = "method_not_allowed"
    http_status = 405
    grpc_status = GRPC_UNIMPLEMENTED


class PayloadTooLarge(IsochroneError):
    code = "too_large"
    http_status = 413
    grpc_status = GRPC_RESOURCE_EXHAUSTED


class Quarantined(IsochroneError):
    code = "quarantined"
    http_status = 422
    grpc_status = GRPC_FAILED_PRECONDITION


class QueueFull(IsochroneError):
    code = "queue_full"
    http_status = 429
    grpc_status = GRPC_RESOURCE_EXHAUSTED


class Internal(IsochroneError):
    code = "internal"


class ModelFailed(Internal):
    code = "model_failed"


class FetchFailed(Internal):
    """The object store or the disk of the cache did not do its part. A later load may succeed."""

    code = "fetch_failed"


class Unsupported(IsochroneError):
    code = "unsupported"
    http_status = 501
    grpc_status = GRPC_UNIMPLEMENTED


class UnsupportedEncoding(Unsupported):
    code = "unsupported_encoding"
    http_status = 415


class Unavailable(IsochroneError):
    code = "unavailable"
    http_status = 503
    grpc_status = GRPC_UNAVAILABLE


class NoWorkerReady(Unavailable):
    """No worker can take a request for this model now. A gateway may let the request wait for one."""


class ConnectionLost(Unavailable):
    """``unprocessed``: the connection broke before the server can have begun the request, or the server says so."""

    code = "connection_lost"

    def __init__(self, message: str, *, unprocessed: bool = False) -> None:
        super().__init__(message)
        self.unprocessed = unprocessed


class DeadlineExceeded(IsochroneError):
    """Of a rejection: how long the request was expected to take (0: not known), and by how much that is too long."""

    expected_ns: int = 0
    missed_by_ns: int = 0
    code = "deadline_exceeded"
    http_status = 504
    grpc_status = GRPC_DEADLINE_EXCEEDED
