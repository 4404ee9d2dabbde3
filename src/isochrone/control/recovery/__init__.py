"""Records of the store that cannot be read: reported, repaired, and rebuilt.

``repair`` is what the leader does by itself. Where the epoch and its copy are both lost, gateways offer the epoch they
serve (``offers``), and a user's request rebuilds the record from the offers and the rollouts (``rebuild``). Must never
treat an unreadable record as an absent one.
"""
