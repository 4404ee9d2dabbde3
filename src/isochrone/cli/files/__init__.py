"""Commands about files on disk: check a fleet.yaml or a model repository, and write a first fleet.yaml."""
