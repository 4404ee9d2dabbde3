"""The Python client: ``isochrone.Client`` and ``isochrone.AsyncClient``, over HTTP and gRPC.

``client`` and ``async_client`` are the two shells, blocking and asynchronous; each has one transport per protocol.
Everything that does no I/O is written once: ``calls`` (a request), ``rest_codec`` and ``grpc_codec`` (its bytes),
``failures`` (errors of servers), ``attempts`` (deadlines and retries). Works with any server of the Open Inference
Protocol; it must not import the gateway, the worker or the control plane.
"""
