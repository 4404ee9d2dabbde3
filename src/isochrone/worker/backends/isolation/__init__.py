"""A model in a process of its own, for every backend that offers it.

``executable`` is the worker's side: it starts a ``child``, sends it ``messages`` over a socket pair and exchanges
tensors through shared blocks (``processes``). ``child_main`` is the program of the child process. How the model is
loaded there is the backend's: it names a module, and sends what that reads; ``sent_context`` is a ``LoadContext`` in
such a form.
"""
