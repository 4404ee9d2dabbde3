"""Fleets in a Kubernetes cluster.

``render.fleet_objects.parts`` makes all objects of a fleet; ``packaging`` turns them into texts of files, of a Helm
chart or for Kustomize; ``variants`` has other ways to run in a cluster (our engine, KServe, KubeRay). ``names`` has
every name and selector. All of these are pure: a ``Fleet`` in, documents or texts out. Only ``pods``, the engine,
talks to a cluster.
"""
