"""Version changes: every step decided by pure code from what the store and the workers say.

``world`` is what is seen; ``wanted`` says which versions each worker should have; ``machine`` takes one rollout one
step further; ``switching`` is its strict cutover; ``judging`` and ``comparing`` decide whether a new version is good
enough. The controller's leader does what they say. Whoever leads next goes on from the records alone.
"""
