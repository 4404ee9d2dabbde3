"""The controller's own short history of the fleet's figures, and the error budgets made of them.

``frames`` are what one second shows, ``history`` keeps them in fixed memory, ``collecting`` asks the gateways.
"""
