"""``isochrone render``: files for other programs, made from a fleet.yaml.

``group`` lists the kinds, one module each; ``writing`` puts their files into a directory, ``failing`` shows errors.
"""
