"""The files by which a Grafana server finds the dashboards and Prometheus. Pure."""

from __future__ import annotations

from typing import Any, Final

from isochrone.monitoring.scraping import INTERVAL

#: Where the files of dashboards are, and the two that name them, below the directory of the rendering.
DASHBOARDS: Final = "dashboards"
PROVIDER: Final = "provisioning/dashboards/isochrone.yaml"
DATA_SOURCE: Final = "provisioning/datasources/isochrone.yaml"
#: Of the data source in the file. A dashboard has a variable for it: any other Prometheus can be chosen.
DATA_SOURCE_UID: Final = "isochrone-prometheus"


def provider(directory: str) -> dict[str, Any]:
    """``directory``: of the dashboards, as the Grafana server sees it."""
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": "isochrone",
                "folder": "Isochrone",
                "type": "file",
                # The next rendering would undo what is changed in Grafana.
                "allowUiUpdates": False,
                "updateIntervalSeconds": 30,
                "options": {"path": directory, "foldersFromFilesStructure": False},
            }
        ],
    }


def data_source(url: str) -> dict[str, Any]:
    """``url``: of the Prometheus server, as the Grafana server reaches it."""
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "Isochrone's Prometheus",
                "uid": DATA_SOURCE_UID,
                "type": "prometheus",
                "access": "proxy",
                "url": url,
                # Grafana chooses windows by it: four readings at least.
                "jsonData": {"httpMethod": "POST", "timeInterval": INTERVAL},
            }
        ],
    }
