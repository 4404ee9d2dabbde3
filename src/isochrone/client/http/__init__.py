"""HTTP/1.1: a codec without I/O, and a transport for each of the two clients."""
