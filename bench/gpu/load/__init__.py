"""The load of the GPU benches.

``generators`` are processes, which run ``loops`` over ``links`` and send ``messages`` whose tensors may stand in shared
memory (``regions``). ``cores`` keeps them apart from the server.
"""
