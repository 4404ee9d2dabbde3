"""The replacement of an authority, as a model: no step ever makes two processes refuse each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.secure.certificates.stages import Stage, Step, next_step, stage_of


class _World:
    """What the files say: trusted authorities, the signing one, and who signed each of two leaves."""

    def __init__(self) -> None:
        self.trusted, self.signer, self.following, self.leaves, self.made = [0], 0, None, [0, 0], 1

    def step(self, renewed: int) -> Step:
        """``renewed``: leaves signed before the command is interrupted."""
        stage = stage_of(has_next_key=self.following is not None, trusted=len(self.trusted))
        step = next_step(stage, has_old_leaves=any(leaf != self.signer for leaf in self.leaves))
        if step is Step.INTRODUCE:
            self.following, self.made = self.made, self.made + 1
            self.trusted = [*self.trusted, self.following]
        elif step is Step.SIGN:
            if self.following is not None:
                self.signer, self.following = self.following, None
            self.leaves = [self.signer if number < renewed else leaf for number, leaf in enumerate(self.leaves)]
        else:
            self.trusted = [self.signer]
        return step


@given(st.lists(st.integers(0, 2), max_size=12))
def test_certificates_before_and_after_a_step_are_trusted_on_both_sides(interruptions: list[int]) -> None:
    world = _World()
    for renewed in interruptions:
        trusted, leaves = list(world.trusted), list(world.leaves)
        world.step(renewed)
        assert set(world.leaves) <= set(trusted), "a process that has not read the files yet refuses a new certificate"
        assert set(leaves) <= set(world.trusted), "a process that has read the files refuses an old certificate"


def test_three_steps_replace_an_authority() -> None:
    world = _World()
    assert [world.step(2) for _ in range(3)] == [Step.INTRODUCE, Step.SIGN, Step.RETIRE]
    assert (world.trusted, world.signer, world.leaves) == ([1], 1, [1, 1])


def test_an_interrupted_step_is_repeated_before_the_old_authority_goes() -> None:
    world = _World()
    assert [world.step(1) for _ in range(4)] == [Step.INTRODUCE, Step.SIGN, Step.SIGN, Step.SIGN]
    assert world.trusted == [0, 1]
    assert world.step(2) is Step.SIGN
    assert world.step(2) is Step.RETIRE


def test_stages_by_the_files() -> None:
    assert stage_of(has_next_key=False, trusted=1) is Stage.SINGLE
    assert stage_of(has_next_key=True, trusted=2) is Stage.INTRODUCED
    assert stage_of(has_next_key=False, trusted=2) is Stage.SIGNING
