"""The endpoint picker: the gateway decides, and an Envoy forwards.

Envoy calls the picker for each request by its external-processing protocol (``envoy.service.ext_proc.v3``), as the
endpoint-picker protocol of the Gateway API inference extension lays down. A request that the picker is asked about is a
request of the gateway's machine: admission, policies, versions, quotas and in-flight counts are the gateway's own. The
attempt that the machine asks for is a header in the answer to Envoy, which names the worker.

``processing`` is one call of Envoy and the place to start; ``pick`` is the request that it asks about. ``calls`` reads
what a request is from its headers, ``bodies`` what its body adds; ``received`` and ``replies`` are the codec of the
messages.
"""
