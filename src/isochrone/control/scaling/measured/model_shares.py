"""The share of a model's requests that one of its pools gets: by what the workers of each answer. Pure."""

from __future__ import annotations

from math import exp

#: A share is a mean of the last readings, whose weight falls to 1/e in this time.
_FADE_SECONDS = 10.0


class ModelShares:
    """State of one pool."""

    def __init__(self) -> None:
        #: By model: the mean.
        self._shares: dict[str, float] = {}

    def share(
        self, model: str, here: float, elsewhere: float, pools: int, elapsed: float, *, is_pressed: bool
    ) -> float:
        """``here``, ``elsewhere``: requests per second that the workers of this pool and of the others answer.
        ``is_pressed``: requests of the model are refused, or wait. An equal share of them is then for this pool,
        whatever it answers: an empty pool answers nothing."""
        equal = 1 / pools
        if here + elsewhere <= 0:
            self._shares.pop(model, None)
            return equal
        share = here / (here + elsewhere)
        before = self._shares.get(model)
        if before is not None:
            share = before + (share - before) * (1 - exp(-elapsed / _FADE_SECONDS))
        self._shares[model] = share
        return max(share, equal) if is_pressed else share
