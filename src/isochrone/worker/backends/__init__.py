"""Runtimes that execute models, behind the small interface in ``interface``.

To add a backend ``foo``:

1. Write ``foo.py`` here (or a package, if it needs several files) with ``load(context: LoadContext) -> Executable``.
   Implement ``execute`` and ``close``; ``torch`` is a complete example. ``parameters`` reads the model's parameters,
   ``declared`` lists its tensors. The registry imports the module on first use, and with it the runtime.
2. Add ``foo`` to ``MODULE_BY_BACKEND`` in ``registry``.
3. Add its names in config.pbtxt and its model files to ``BACKENDS`` in ``isochrone.models.configuration.backends``;
   for ``--backend-config``, add its settings to ``isochrone.cli.triton.model_settings``.
4. Test ``load`` and ``execute`` in ``tests/worker/backends/test_foo.py``, as ``test_torch.py`` does.

A backend must not import another backend, nor any other part of the worker.
"""
