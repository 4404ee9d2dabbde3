"""``isochrone what-if``: the simulator on the present fleet, or on a saved situation. ``view`` shows answers."""
