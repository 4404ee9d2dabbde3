"""The control plane's parts inside other processes: what connects a gateway or a worker to the store.

They register the process under a lease, apply the records to a gateway, and take part in strict switches. They must
never stop the process from serving: while the store is away, a gateway keeps its last epoch and a worker keeps its
models.
"""
