"""The Open Inference Protocol (KServe v2) with Triton's extensions: what the bytes of a request mean.

Both transports, REST and gRPC, translate to the one set of messages in ``messages`` and call the one interface in
``service``. Nothing here runs a model.
"""
