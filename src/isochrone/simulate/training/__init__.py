"""Training of the learned policy on random fleets, and its evaluation beside Prequal.

Must never be imported by the runs themselves: it uses them.
"""
