"""One worker process: it serves the models of a repository over HTTP and gRPC.

A request passes through these modules in order:

- ``server`` owns the process: listeners, signals, start and stop; what it loads first and what it records.
- ``service`` implements every call of the protocol, for both transports.
- ``catalog`` maps a model's name and version to a ``served_version``; it loads, replaces and unloads versions.
- ``served_version`` checks a request against the model's signature and passes it to a runner.
- ``execution`` (ordinary and decoupled models), ``sequences`` (stateful models) and ``ensembles`` (graphs of models)
  hold the runners. ``scheduling`` decides which requests run next and together.
- ``backends`` execute batches: onnxruntime, torch, Python.

``statistics`` counts, ``response_cache`` keeps answers of equal requests, ``activation_cache`` those of similar
pictures. All state belongs to the event loop's thread; only the execution of a batch and the loading of a model run on
other threads.
"""
