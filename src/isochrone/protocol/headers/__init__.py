"""Headers that REST and gRPC both know, each with its values: read from a request, or written to an answer.

``request_fields`` picks those that follow a request into its model out of its head. Headers of one transport alone are
in ``rest.headers`` and ``grpc.calls``. No module here sends anything.
"""
