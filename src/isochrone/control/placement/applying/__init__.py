"""Applies plans in planned pools: what a plan is made of there, and which of its moves may begin.

- ``planned_pools``: the planned pools of a fleet at one moment; ``absences``: which of their workers are lost
- ``events``: what is reported of them
- ``execution``: the moves that memory and readiness allow; ``rejections``: models that a worker gave up
"""
