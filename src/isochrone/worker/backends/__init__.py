"""Runtimes that execute models, behind the small interface in ``interface``.

To add a backend ``foo``:

1. Write ``foo.py`` here (or a package, if it needs several files) with ``load(context: LoadContext) -> Executable``.
   Implement ``execute`` and ``close``; ``torch.py`` is a complete example. ``parameters`` reads the model's parameters,
   ``declared`` its tensors. Import the runtime inside the module only: the registry imports it on first use.
2. Add ``foo`` to ``MODULE_BY_BACKEND`` in ``registry``, and its names in config.pbtxt and its default file names to
   ``isochrone/models/configuration/backends.py``.
3. Test ``load`` and ``execute`` in ``tests/worker/backends/test_foo.py``, as ``test_torch.py`` does.
"""
