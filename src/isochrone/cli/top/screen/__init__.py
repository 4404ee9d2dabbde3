"""The screen of ``isochrone top``: a pure view (state and event → state; state → lines), and a thin shell.

``view`` decides, ``drawing`` draws, ``running`` reads keys, signals and samples and writes to the terminal.
"""
