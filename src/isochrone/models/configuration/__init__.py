"""The configuration of a model: parse, complete, validate.

``pbtxt`` and ``json_config`` parse, ``completion`` fills in what was left out, ``validation`` rejects what cannot be
served, with its rules for tensors, scheduling and ensembles in files of their own. ``ensemble_steps`` checks an
ensemble against the models of its steps once those are known. Errors name the file, line, key and expected value.
"""
