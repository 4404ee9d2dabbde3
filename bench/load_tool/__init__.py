"""`python -m bench.load_tool`: `isochrone bench` beside wrk, h2load and an independent open-loop generator."""
