"""Tensors: the protocol's datatypes, and numpy arrays to and from bytes, JSON, protobuf and shared memory.

Both transports use these codecs. Input from a caller raises an ``IsochroneError`` and nothing else. No module here
knows a transport, a request or a model.
"""
