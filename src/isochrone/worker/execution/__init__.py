"""Running requests on model instances: the effects around ``scheduling``'s decisions.

``batch_runner`` runs ordinary models and ``stream_runner`` decoupled ones; both extend ``queued_runner``. ``runner`` is
the base of all runners, also of sequences. An
``instance`` is one executable with its thread, and ``batch`` is one run on it. Runs that hang are ended by ``watchdog``
(inline) or left behind by ``replacement`` (threads). Nothing here decides the order of requests.
"""
