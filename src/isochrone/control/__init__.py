"""The control plane: what should run where, and how the fleet gets there without a wrong answer.

``fleet`` reads fleet.yaml. ``records`` are what the store holds. ``rollout`` decides each step of a version change;
``controller`` is the leader that carries the steps out; ``gateway_link`` and ``worker_link`` stand in the processes it
leads. Nothing here is on the way of a request.
"""
