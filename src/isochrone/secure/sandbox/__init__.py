"""The sandbox of python models: what the process of a model may do, and how the kernel is told.

``settings`` holds what the operator allowed, ``confinement`` what follows for one process, ``launch`` starts that
process. ``enter`` is its first program: it applies ``confine`` before anything of the model is imported. ``confine``
uses ``limits``, ``identity``, ``files`` and ``system_calls``, each for one kind of limit; ``kernel`` makes the system
calls that Python has no function for.

The process of a model imports ``enter`` before it is confined, with one thread: numpy, whose import starts threads, and
everything else comes later. So nothing that ``enter`` imports may start a thread or import numpy.
"""
