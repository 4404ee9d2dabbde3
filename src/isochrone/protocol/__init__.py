"""The Open Inference Protocol (KServe v2) with Triton's extensions, over REST and gRPC.

Both transports translate requests to the types in ``messages`` and call the interface in ``services``. The path of a
request: ``applications`` chooses a transport, the router of ``rest`` or ``grpc`` chooses a route once per distinct
message head, and the route decodes the body, calls ``InferenceService.infer`` and writes the answer. Nothing here runs
a model.

To add a header:

- A header that both transports know: a module of ``headers``.
- A request header that HTTP reads: ``rest.headers`` parses it; ``rest.infer.InferRoute`` (and ``rest.generate``) keep
  the result, so that it is parsed once per distinct message head.
- Request metadata that gRPC reads: ``grpc.calls.CallHead``, which holds what a header block says about its call.
- A response header that the request asks for: ``rest.infer.RestInferRequest._extras`` for HTTP and
  ``grpc.calls.CallHead.extras`` for gRPC's trailing metadata, with the request's ``is_plain`` false.
- A header of every response, whatever the request: ``wire.http1.exchange.response_head`` (HTTP/1.1),
  ``wire.http2.server_stream.response_block`` (HTTP/2), ``grpc.calls.RESPONSE_HEADERS`` and, for errors,
  ``grpc.calls.error_block`` (gRPC). Encoded heads are reused. A gateway adds the header to its own responses by the
  same functions, so ``_NOT_RETURNED`` in both of its codecs must drop the worker's. Not covered: what the wire itself
  rejects (``wire.listening.listener``, ``wire.http2.server_stream``), and the control API.
- A header that the operator turns into a request parameter, or requires: ``services.forwarded_headers`` and
  ``access``; no code is needed.

The gateway forwards the headers of requests and responses, except for the sets ``_NOT_FORWARDED`` and
``_NOT_RETURNED`` of its codecs; ``gateway.front`` says how to add a header that the gateway reads.
"""
