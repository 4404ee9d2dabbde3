"""The worker's bench: one process of ours beside Triton, grpc.aio and the Python model servers."""
