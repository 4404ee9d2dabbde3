"""How the leader makes one worker serve the versions it should.

``loads`` decides which calls to make, ``driver`` makes them, ``control`` speaks the protocol, ``triton_loads`` knows
what a real Triton needs, ``load_crashes`` stops loads that end processes. Must never decide which versions a worker
should have: ``rollout.desired_versions`` does.
"""
