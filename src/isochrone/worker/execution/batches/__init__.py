"""Ordinary models: requests become batches, and batches runs.

``batch_runner`` takes batches from the queue; its part on the loop's thread is ``inline_runner``. ``lookahead`` and
``launch_ahead`` have the next batch ready before an instance is free. Executables that send answers themselves do it
through ``late_answers``. One batch in an executable is ``instances.batch``.
"""
