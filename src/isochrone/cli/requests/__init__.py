"""``isochrone infer``: one request to a server, over HTTP or gRPC, and where its time went."""
