"""The learned policy: a linear model that re-ranks Prequal's safe set, and the guard rails around it.

``policy`` is the choice, ``features`` and ``model`` the score, ``slices`` the comparison with Prequal, ``shares`` the
bounds per endpoint, ``shadow`` the log of what it would have done. It must never choose outside Prequal's safe set.
"""
