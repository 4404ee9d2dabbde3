"""``isochrone.ControlLoop``: an agent's loop of sense, infer and act at a fixed rate, with a remote and a local model.

Read ``loop`` first: the shell that runs the ticks. What it decides is pure and takes ``now`` as an argument:
``schedule`` (when each tick starts and ends), ``decision`` (remote or local, and when the local model must start),
``remote_trust`` (whether remote answers come in time), ``local_fitness`` (whether the local model can answer within a
tick), ``late_answers`` (to which tick an answer belongs).
``remote_calls`` and ``local_runs`` call the models; ``waits`` waits for them; ``times`` counts. It must not
act on an answer that was asked for in another tick.
"""
