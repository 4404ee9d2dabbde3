"""REST: paths, JSON and binary bodies to requests, and results to HTTP responses.

``router`` finds the route of a message head, once per distinct head. The routes read bodies and call an
``InferenceService``. No module here runs a model, or imports the gRPC side.
"""
