"""How a run stands, as a small file that `federation run` and `federation status` show."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgfed.errors import one_line
from pgfed.model.metrics import ACCURACY, Metric

FILE = "status.json"

log = logging.getLogger(__name__)


class Status:
    """Kept up to date by a run. Not synced to disk: it tells, nothing depends on it."""

    def __init__(self, folder: Path, names: Sequence[str], metric: Metric = ACCURACY) -> None:
        self._path = folder / FILE
        self.content: dict[str, Any] = {
            "state": "waiting for sites",
            "method": None,
            "seed": None,
            "round": 0,
            "rounds": 0,
            "metric": _named(metric),
            "score": None,
            "error": None,
            "messages": [],
            "sites": [
                {
                    "name": name,
                    "here": False,
                    "doing": "",
                    "n_train": 0,
                    "rounds": 0,
                    "missed": 0,
                    "seconds": None,
                    "bytes_down": 0,
                    "bytes_up": 0,
                    "score": None,
                }
                for name in names
            ],
        }

    def name(self, client: int) -> str:
        return str(self.site(client)["name"])

    def site(self, client: int) -> dict[str, Any]:
        site: dict[str, Any] = self.content["sites"][client]
        return site

    def places(self, here: list[int], n_train: list[int]) -> None:
        """Who is there, and with how many samples."""
        for i, site in enumerate(self.content["sites"]):
            site |= {"here": i in here, "n_train": n_train[i]}
        self.write()

    def doing(self, client: int, what: str) -> None:
        self.site(client)["doing"] = what
        self.write()

    def round(self, record: dict[str, Any]) -> None:
        """A round has been run."""
        for i in record["cohort"]:
            site, facts = self.site(i), record["sites"].get(i, {})
            if facts.get("counted"):
                site["rounds"] += 1
                site["seconds"] = facts["seconds"]
                site["bytes_down"] += facts["bytes_down"]
                site["bytes_up"] += facts["bytes_up"]
            else:
                site["missed"] += 1
        for i, facts in record["sites"].items():
            if "score" in facts:
                self.site(i)["score"] = facts["score"]
        self.write(round=record["round"], score=record["mean_score"])

    def tell(self, text: str) -> None:
        """A line for people; a site may have had words in it."""
        text = one_line(text)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self.content["messages"] = [*self.content["messages"], f"{stamp} {text}"][-20:]
        log.info(text)
        self.write()

    def write(self, **changes: Any) -> None:
        self.content.update(changes)
        temporary = self._path.with_name(f".{FILE}.tmp")
        with contextlib.suppress(OSError):  # a full disk: what must be written says so
            temporary.write_text(json.dumps(self.content))
            os.replace(temporary, self._path)


def _named(metric: Metric) -> dict[str, str]:
    return {"name": metric.name, "title": metric.title, "unit": metric.unit}


def read(folder: Path) -> dict[str, Any] | None:
    """An earlier version told of no metric: its scores are not shown."""
    try:
        content: dict[str, Any] = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return None
    sites = [{"score": None, **site} for site in content["sites"]]
    return {"metric": _named(ACCURACY), "score": None, **content, "sites": sites}
