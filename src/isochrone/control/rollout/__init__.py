"""A version change from prepare to commit to drain, decided step by step by pure code.

``machine`` takes one rollout one step further: its record and the observed state in (``observed_state``), the next
record and what is written with it out (``decision``). ``switching`` is the cutover, ``first_loads`` chooses the worker
of a pool that loads a version first, ``desired_versions`` says which versions each worker should have, ``memory``
whether they fit there, ``local_times`` keeps time-outs independent of other machines' clocks. ``leader.controller``
calls them and writes the result; a new leader continues from the records alone. Nothing here may do I/O, read a clock
or await.

To add a condition under which a rollout aborts: ``machine._begin`` or ``machine._prepare`` checks it against the
observed state and returns ``_abort``, as with a model that has no worker. Figures of workers come with their versions
(``workers.driver`` reads them, ``observed_state.Loaded`` holds them).

To add a gate before the switch, which is a state of its own:

1. ``state/records.py``: its settings and its progress, as fields of ``RolloutRecord`` with defaults; the state goes
   into the list of states.
2. ``machine``: a function ``(record, observed) -> Decision`` for the state, its call in ``advance``, the state among
   those that can be aborted there, and its place in ``_onward``, which orders the gates. If workers must keep the new
   version loaded meanwhile, add the state to ``LOADED_IN`` in ``desired_versions``.
3. If it needs figures of gateways, a flag in ``decision.Decision`` starts the work in ``evaluation/evaluator.py``,
   which reports a ``Verdict``; ``leader/observation.py`` puts it into ``observed_state.ObservedState``.
4. ``cli/rollouts/view.py`` shows the state.

To add a setting, for either:

1. ``fleet/model_spec.py``: the key under ``rollout:`` in fleet.yaml, with a docstring, then ``make docs``.
   ``fleet/checks.py`` validates it beside others, ``fleet/planning/plan.py`` names it in plans.
2. ``requests/rollouts.py`` copies it into the records of rollouts and rollbacks that users start, with an option in
   ``api/messages.py`` and ``cli/rollouts/rollout.py``; ``desired/applied.py`` and ``desired/reconcile.py`` copy it
   into those of an applied file.
3. ``tests/control/rollout/test_rollout_machine.py``: records and observed states in, decisions out, no processes.
   ``bench/control/fault_driver.py`` kills processes in every state. docs/rollouts.md has the table of states.
"""
