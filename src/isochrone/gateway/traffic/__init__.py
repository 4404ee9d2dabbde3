"""Which requests go where before a worker is chosen, and who may send how much: decisions, all pure.

``quotas`` (may this caller), ``canary`` (which version), ``shadow`` (is a copy sent too), ``affinity`` (what the choice
sticks to), ``tiers`` (edge, region or core). ``parameters`` and ``json_ends`` read what these need from a JSON body.
"""
