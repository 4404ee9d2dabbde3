"""A version change from prepare to commit to drain, decided step by step by pure code.

``machine`` takes one rollout one step further: its record and the observed state in (``observed_state``), the next
record and what is written with it out (``decision``). ``switching`` is the cutover, ``first_loads`` chooses the worker
of a pool that loads a version first, ``desired_versions`` says which versions each worker should have, ``local_times``
keeps time-outs independent of other machines' clocks. ``leader.controller`` calls them and writes the result; a new
leader continues from the records alone. Nothing here may do I/O, read a clock or await.

To add a rule, for example another gate before the switch:

1. ``state/records.py``: its settings and its progress, as fields of ``RolloutRecord`` with defaults; a new state goes
   into the list of states.
2. ``rollout/machine.py``: a function ``(record, observed) -> Decision`` for the state, its call in ``advance``, and its
   place in ``_onward``, which orders the gates. If workers must keep the new version loaded meanwhile, add the state to
   ``_LOADED_IN`` in ``rollout/desired_versions.py``.
3. If it needs figures from outside, ``evaluation/evaluator.py`` collects them and reports a ``Verdict``, which
   ``leader/observation.py`` puts into the observed state.
4. ``fleet/model_spec.py``: the setting in fleet.yaml; ``requests/rollouts.py`` copies it into rollouts that users
   start, ``desired/applied.py`` and ``desired/reconcile.py`` into those of an applied file.
5. ``tests/control/rollout/test_rollout_machine.py``: records and observed states in, decisions out, no processes.
"""
