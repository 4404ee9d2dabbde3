"""The gateway towards its callers: routes, codecs for HTTP and gRPC, and the calls that the gateway answers itself.

A codec turns a caller's bytes into a request (``requests.request``) and an endpoint's answer into bytes for the caller.
Nothing here decides what happens to a request: ``requests.machine`` does.

To add a header that the gateway reads:

- Parse it once per distinct head, in ``http_requests.HttpRoute.__init__`` and ``grpc_requests.GrpcRoute.__init__``;
  streams inherit the latter. ``protocol`` parses what workers read as well.
- If a worker must not see it, add it to ``_NOT_FORWARDED`` in both files. Control calls forward only the headers in
  ``_PASSED`` (``control_calls.routes``).
- If it changes where a request goes, make a field of ``requests.request.Request`` of it, set in the constructors of
  ``HttpRequest``, ``GrpcRequest`` and ``StreamRequest._arrive``, and clear ``HttpRoute.is_plain``. ``GrpcRoute._read``
  has a short cut for plain messages, too.
- If it adds a header to the answer, clear ``returns_plainly`` in both routes: answers with a known head skip
  everything else.
- Document it in the table of headers in docs/protocol.md.
"""
