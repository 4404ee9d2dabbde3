"""``isochrone infer``: send one request over HTTP or gRPC and show where its time went.

Not the data path: it blocks, one request at a time.
"""
