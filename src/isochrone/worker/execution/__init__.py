"""Running requests on model instances: the effects around ``scheduling``'s decisions.

``batch_runner`` runs ordinary models (its part on the loop's thread is ``inline_runner``) and ``stream_runner``
decoupled ones; both extend ``queued_runner``. ``runner`` is the base of all runners, also of sequences. An ``instance``
is one executable with its thread, and ``batch`` is one run on it; short runs happen on the loop's thread instead
(``inline`` decides which), all those of a turn in a row (``compute_stage``). Runs that hang are ended by ``watchdog``
(inline) or left behind by ``replacement`` (threads). Nothing here decides the order of requests.
"""
