"""Settings: files become frozen records here, and errors name file, line, key, expected value and given value.

``documents`` parses YAML or JSON, ``sections`` and ``records`` check the data against types and bounds (pydantic), and
all errors of a file are reported at once. Must never know what a setting is for: each package declares its own.
"""
