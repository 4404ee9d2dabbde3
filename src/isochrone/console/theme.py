"""The colors of the console, light and dark, as CSS variables.

They are here and not in the style sheet so that a test can compute the contrast of every pair that is used: WCAG 2.1 AA
asks for 4.5 of text and for 3 of what carries a meaning beside text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LIGHT: Final[Mapping[str, str]] = {
    "page": "#f4f6f9",
    "surface": "#ffffff",
    "raised": "#e9edf2",
    "line": "#d3dae3",
    "edge": "#7b8798",
    "text": "#18212d",
    "muted": "#515d6d",
    "accent": "#0a58b5",
    "on-accent": "#ffffff",
    "good": "#17703a",
    "warn": "#855300",
    "bad": "#b0201a",
    "on-bad": "#ffffff",
    # Loads of workers, from idle to overloaded; text is on them.
    "load-0": "#e4e9f0",
    "load-1": "#bfe3c8",
    "load-2": "#f4e6a6",
    "load-3": "#f8c893",
    "load-4": "#f2a49b",
    "load-text": "#18212d",
    "stage-gateway": "#0a58b5",
    "stage-network": "#66727f",
    "stage-queue": "#a8570a",
    "stage-compute": "#17703a",
    "p50": "#0a58b5",
    "p95": "#8a5a00",
    "p99": "#b0201a",
    "heat": "#0a58b5",
}

DARK: Final[Mapping[str, str]] = {
    "page": "#0e1319",
    "surface": "#161d26",
    "raised": "#222c38",
    "line": "#2e3a48",
    "edge": "#74839a",
    "text": "#e7ecf3",
    "muted": "#a3b0c0",
    "accent": "#74b6ff",
    "on-accent": "#07131f",
    "good": "#62d288",
    "warn": "#e8b95c",
    "bad": "#ff938a",
    "on-bad": "#240604",
    "load-0": "#26313e",
    "load-1": "#1c5332",
    "load-2": "#5c4d12",
    "load-3": "#7a4611",
    "load-4": "#8c2c25",
    "load-text": "#f3f6fa",
    "stage-gateway": "#74b6ff",
    "stage-network": "#8e9bac",
    "stage-queue": "#f0a452",
    "stage-compute": "#62d288",
    "p50": "#74b6ff",
    "p95": "#e8b95c",
    "p99": "#ff938a",
    "heat": "#74b6ff",
}

#: (foreground, background, least contrast): every pair that the pages use.
PAIRS: Final[tuple[tuple[str, str, float], ...]] = (
    *(("text", each, 4.5) for each in ("page", "surface", "raised")),
    *(("muted", each, 4.5) for each in ("page", "surface", "raised")),
    *((each, "surface", 4.5) for each in ("accent", "good", "warn", "bad")),
    *((each, "page", 4.5) for each in ("accent", "good", "warn", "bad")),
    *((each, "raised", 4.5) for each in ("accent", "good", "warn", "bad")),
    ("on-accent", "accent", 4.5),
    ("on-bad", "bad", 4.5),
    *(("load-text", f"load-{level}", 4.5) for level in range(5)),
    *((f"stage-{stage}", "surface", 3.0) for stage in ("gateway", "network", "queue", "compute")),
    *((each, "surface", 3.0) for each in ("p50", "p95", "p99", "heat", "edge")),
    ("edge", "page", 3.0),
)


def style_sheet() -> str:
    """Light, dark where the system is, and whichever of them a reader chose."""
    light, dark = _variables(LIGHT), _variables(DARK)
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {dark} }} }}\n"
        f":root[data-theme=light] {{ color-scheme: light; {light} }}\n"
        f":root[data-theme=dark] {{ color-scheme: dark; {dark} }}\n"
    )


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colors such as #18212d, from 1 to 21 (WCAG 2.1, relative luminance)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _variables(colors: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in colors.items())
