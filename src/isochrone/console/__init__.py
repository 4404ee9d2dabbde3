"""The console: pages about a fleet for browsers, which every controller serves at /console beside its API.

``view`` computes what is shown, ``live`` sends it once a second to however many browsers, ``pages`` are the structure,
``assets`` draw it in the browser, ``mounting`` puts all of it into the control API's application. Nothing here is
imported unless the console is enabled, and NiceGUI not before the first browser asks for a page. The console reads what
its controller knows, and changes nothing by itself: its actions are operations of the API.
"""
