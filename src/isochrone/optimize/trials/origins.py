"""Which versions of a model ``isochrone optimize`` wrote, by the reports beside the models."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

#: The directory of a repository with the reports of results, by model and version.
REPORTS = ".reports"
REPORT_FILE = "report.json"


def origin_of(file: Path, source: Path) -> dict[str, str]:
    """For the report of a version: the written file, and the file that it was made from."""
    return {"file": file.name, "sha256": _digest(file), "made_from": str(source)}


def is_optimized(directory: Path, version: int) -> bool:
    """Whether a version of the model in ``directory`` has a report, and its file is still the one of that report."""
    report = directory.parent / REPORTS / directory.name / str(version) / REPORT_FILE
    try:
        found: Any = json.loads(report.read_bytes())
        origin = found["origin"]
        return bool(_digest(directory / str(version) / str(origin["file"])) == origin["sha256"])
    except OSError:
        return False
    except (ValueError, KeyError, TypeError):
        return True  # a report that does not say more


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
