"""The gateway towards its callers: routes, codecs for HTTP and gRPC, and the calls that the gateway answers itself.

A codec turns a caller's bytes into a request (``requests.request``) and an endpoint's answer into bytes for the caller.
Nothing here decides what happens to a request: ``requests.machine`` does.
"""
