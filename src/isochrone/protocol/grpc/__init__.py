"""gRPC on our own HTTP/2: methods, protobuf messages and statuses, streams, health and reflection.

``router`` finds the route of a call, once per distinct header block. The routes read messages and call an
``InferenceService``. No module here runs a model, or imports the REST side or grpcio.
"""
