"""A cart that balances a pole: its motion, the controllers, and what is counted as quality. numpy alone.

The state is (position in m, speed in m/s, angle in rad, angular speed in rad/s), the action a force in N. Pushes at
random times, from a seed, keep it from coming to rest. A pole that leans further than ``FALLEN`` has fallen: it is
counted, and stands up again at the start.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GRAVITY, CART, POLE, HALF_LENGTH = 9.81, 1.0, 0.1, 0.3
MOST_FORCE = 20.0
FALLEN = 0.6
#: Seconds of one step of the motion, and between pushes.
STEP = 0.002
PUSH_EVERY = 0.5
#: Between two forces of the local controller.
LOCAL_FORCE = 10.0
#: A push changes the angular speed by up to so much.
PUSH = 0.7


def accelerations(angle: float, turning: float, force: float) -> tuple[float, float]:
    """Of the cart and the pole (the equations of Barto, Sutton and Anderson, 1983, without friction)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    mass = CART + POLE
    pull = (force + POLE * HALF_LENGTH * turning**2 * sine) / mass
    spin = (GRAVITY * sine - cosine * pull) / (HALF_LENGTH * (4 / 3 - POLE * cosine**2 / mass))
    return pull - POLE * HALF_LENGTH * spin * cosine / mass, spin


class CartPole:
    """One robot. Time is given by its caller, in seconds."""

    def __init__(self, seed: int, now: float) -> None:
        self._random = np.random.default_rng(seed)
        self._now = now
        self._next_push = now + PUSH_EVERY * self._random.random()
        self._force = 0.0
        self.state = self._upright()
        self.falls = 0
        self._squares = 0.0
        self._steps = 0

    def _upright(self) -> Array:
        return self._random.uniform(-0.05, 0.05, 4)

    def advance(self, now: float) -> None:
        """Move on to this time."""
        # Plain floats: numpy takes five times as long for single numbers.
        position, speed, angle, turning = self.state.tolist()
        while self._now + STEP <= now:
            self._now += STEP
            if self._now >= self._next_push:
                self._next_push += PUSH_EVERY
                turning += self._random.uniform(-PUSH, PUSH)
            pull, spin = accelerations(angle, turning, self._force)
            speed += pull * STEP
            turning += spin * STEP
            position += speed * STEP
            angle += turning * STEP
            self._squares += angle**2
            self._steps += 1
            if abs(angle) > FALLEN:
                self.falls += 1
                position, speed, angle, turning = self._upright().tolist()
                self._force = 0.0
        self.state[:] = position, speed, angle, turning

    def push(self, force: float, now: float) -> None:
        """Apply this force from now on."""
        self.advance(now)
        self._force = float(np.clip(force, -MOST_FORCE, MOST_FORCE))

    def take_quality(self) -> tuple[int, float, int]:
        """Falls, the sum of squared angles and the number of steps, since the last call."""
        found = (self.falls, self._squares, self._steps)
        self.falls, self._squares, self._steps = 0, 0.0, 0
        return found


def optimal_gains(period: float) -> Array:
    """The linear-quadratic regulator of the upright position, for a controller that acts once in each period."""
    spin = 1 / (HALF_LENGTH * (4 / 3 - POLE / (CART + POLE)))
    pull = POLE * HALF_LENGTH / (CART + POLE)
    a = np.eye(4)
    a[0, 1] = a[2, 3] = period
    a[3, 2] = GRAVITY * spin * period
    a[1, 2] = -pull * GRAVITY * spin * period
    b = np.array([[0.0], [(1 + pull * spin) / (CART + POLE) * period], [0.0], [-spin / (CART + POLE) * period]])
    cost, effort = np.diag([1.0, 0.1, 50.0, 1.0]), np.array([[0.02]])
    value = cost.copy()
    for _ in range(5000):
        gain = np.linalg.solve(effort + b.T @ value @ b, b.T @ value @ a)
        value = cost + a.T @ value @ (a - b @ gain)
    return -np.asarray(gain[0])


def local_force(state: Array) -> float:
    """The local controller: lower gains, five forces to choose from, and it does not see where the cart is."""
    wanted = 3.0 * state[1] + 45.0 * state[2] + 8.0 * state[3]
    return float(np.clip(np.round(wanted / LOCAL_FORCE), -2, 2) * LOCAL_FORCE)
