"""Sending requests with callbacks, without a task per request: one small interface over HTTP/1.1 and gRPC.

The connections are those of the gateway (``isochrone.wire``). Nothing here retries: what is measured is one sending.
"""
