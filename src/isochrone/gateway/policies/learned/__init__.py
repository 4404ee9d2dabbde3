"""The learned policy: a linear model that re-ranks Prequal's safe set, and the guard rails around it.

``policy`` makes the choice, ``features`` and ``model`` compute the score, ``slices`` compares the results with
Prequal's, ``shares`` bounds the traffic per endpoint, ``shadow`` logs decisions that are not carried out. The policy
must never choose outside Prequal's safe set.
"""
