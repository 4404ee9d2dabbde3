"""The steps in which an authority is replaced, so that no process refuses another on the way. Pure.

    SINGLE       one authority is trusted and signs
    INTRODUCED   a second one is trusted too; the first still signs
    SIGNING      the second one signs, all certificates are new; the first is still trusted
    SINGLE       the first is trusted no more

Between two steps every process must have read its files. Then certificates of either side of a step are trusted by
processes of either side of it.
"""

from __future__ import annotations

from enum import Enum


class Stage(Enum):
    """How far the replacement of an authority is."""

    SINGLE = "single"
    INTRODUCED = "introduced"
    SIGNING = "signing"


class Step(Enum):
    """What ``isochrone certs rotate --ca`` does next."""

    INTRODUCE = "introduce"
    SIGN = "sign"
    RETIRE = "retire"


def stage_of(*, has_next_key: bool, trusted: int) -> Stage:
    """By the files: whether the key of an authority that does not sign yet is there, and how many are trusted."""
    if has_next_key:
        return Stage.INTRODUCED
    return Stage.SIGNING if trusted > 1 else Stage.SINGLE


def next_step(stage: Stage, *, has_old_leaves: bool) -> Step:
    """``has_old_leaves``: certificates that the signing authority has not signed, as after an interrupted step.

    Their signer must stay trusted, so they are signed again before it is retired.
    """
    if stage is Stage.SINGLE:
        return Step.INTRODUCE
    if stage is Stage.INTRODUCED or has_old_leaves:
        return Step.SIGN
    return Step.RETIRE
