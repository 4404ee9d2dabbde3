"""The desired state of the models: what the applied fleet.yaml asks for, and how the leader gets there.

``applied`` reads the fleet record, ``reading`` does so in the background, ``reconcile`` decides which rollouts and
which epoch follow. Must never decide how a single rollout proceeds: ``rollout`` does.
"""
