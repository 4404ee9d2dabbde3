"""The Python client: ``isochrone.Client`` and ``isochrone.AsyncClient``, over HTTP and gRPC.

``client`` and ``async_client`` are the two shells, blocking and asynchronous. ``http`` and ``grpc`` each have a
transport for both. Everything that does no I/O is written once: ``calls`` (a request), ``attempts`` (deadlines and
retries), ``failures`` (errors), and in each room a codec (the bytes of a request). ``control_loop`` is the
loop of an agent over the asynchronous client (``isochrone.ControlLoop``). Works with any server of the Open Inference
Protocol; it must not import the gateway, the worker or the control plane.
"""
