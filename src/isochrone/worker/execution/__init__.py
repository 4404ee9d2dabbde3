"""Running requests on model instances: the effects around ``scheduling``'s decisions.

``batches`` runs ordinary models and ``streams`` decoupled ones; both extend ``queued_runner``. ``runner`` is the base
of all runners, also of sequences; ``runner_context`` holds their collaborators and limits. ``instances`` holds
executables, their threads and one run on them; short runs happen on the loop's thread instead (``inline``). Runs that
hang are ended by ``inline.watchdog`` or, on threads, left behind by ``instances.replacement``. Nothing here decides the
order of requests.
"""
