"""A Triton model in a process of its own.

``executable`` is the worker's side: it starts a process and, after a death, the next one. ``session`` is the worker's
side of one process. It has two links with ``messages``: over the first, the thread of the instance sends requests and
waits for ``execute``; over the second, which a thread of its own reads, come the responses of senders, calls of other
models and log lines, at any time (``calls`` carries the calls out, ``flights`` knows the requests in the process).

``child_main`` is the program of the process, ``child_requests`` its requests and their outlets, ``child_server`` what
the model asks of the server.
"""
