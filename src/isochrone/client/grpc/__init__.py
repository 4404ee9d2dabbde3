"""gRPC through the stock library: a codec without I/O, and a transport for each of the two clients."""
