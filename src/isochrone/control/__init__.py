"""The control plane: the desired state of a fleet, its observed state, and the steps that bring one to the other.

- ``state``: the records in the store and a typed view of them
- ``fleet``: fleet.yaml, its checks and the plan of a change
- ``desired``: the versions that the applied file asks for, and the rollouts that bring them
- ``rollout``: one version change from prepare to commit to drain, as a pure machine
- ``placement``: which models run on which workers, as plans that nothing applies yet
- ``evaluation``: whether a new version is good enough (comparison, canary)
- ``workers``: how the leader makes a worker load and unload versions
- ``requests``: what users ask for, decided as transactions
- ``recovery``: records that cannot be read
- ``leader``: election, and the loop that reconciles the fleet while a controller leads
- ``agents``: the parts that run inside gateways and workers
- ``api``: the HTTP API

Nothing here is on the path of a request, and gateways and workers import nothing of it.
"""
