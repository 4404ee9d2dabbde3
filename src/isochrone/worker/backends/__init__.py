"""Runtimes that execute models, behind the small interface in ``interface``.

To add a backend ``foo``:

1. Write ``foo.py`` here (or a package, if it needs several files) with ``load(context: LoadContext) -> Executable``.
   Implement ``execute`` and ``close``; ``torch`` is a complete example. ``parameters`` reads the model's parameters,
   ``declared`` lists its tensors. The registry imports the module on first use, and with it the runtime. Decide
   ``inline_allowed`` and ``fresh_outputs`` (``interface.Executable``): wrong answers come from a wrong choice.
2. Add ``foo`` to ``MODULE_BY_BACKEND`` in ``registry``, and to "Worker's backends are independent of each other" in
   import-contracts.toml.
3. Add its names in config.pbtxt and its model files to ``BACKENDS`` in ``isochrone.models.configuration.backends``
   (without a platform of Triton's: ``("",)``); for ``--backend-config``, add its settings to
   ``isochrone.cli.triton.model_settings`` and its text in ``cli.triton.flags``, then ``make docs``.
4. An optional runtime is an extra in pyproject.toml, with mypy's overrides there, its installation in the Makefile and
   ``_WITHOUT_EXTRAS`` in scripts/test_lowest.py.
5. Test ``load`` and ``execute`` in ``tests/worker/backends/test_foo.py``, as ``test_torch.py`` does. Tests of the
   registry and of Triton's flags list the backends.
6. docs/serving.md has the tables of backends and of their parameters; README.md and docs/architecture.svg name them.

A backend must not import another backend, nor any other part of the worker.
"""
