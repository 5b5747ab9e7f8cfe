"""Pictures of the page, to be looked at: `PYTHONPATH=tests python -m report.screenshots OUT`.

Made-up runs of 1, 6 and 17 methods on 3, 20 and 200 clients, at 1400 and 400 pixels, light and
dark. No test: whether a page is clear, people say. Give run folders to see these instead. With a
picture's name, OUT.png, and one run folder it takes the first screen alone, as README shows it:
`pgfed run && PYTHONPATH=tests python -m report.screenshots docs/images/report.png runs/digits`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pgfed.report.rendering import write_page
from report.folders import make_folder
from report.test_report_browser import CHROMIUM, OPTIONS, Opened, draw_everything, sync_api

SIX = ["local", "fedavg", "fedavg-local", "pgfed", "pgfed-mo", "fedper"]
METHODS = {
    1: ["fedavg"],
    6: SIX,
    17: [
        *SIX,
        *("pgfed-ce", "feddyn", "pfedme", "fedfomo", "apfl", "fedrep", "lg-fedavg"),
        *("per-fedavg", "fedrod", "fedbabu", "fedavg-ft"),
    ],
}


def made_up(place: Path) -> list[Path]:
    folders = []
    for methods, names in METHODS.items():
        for clients in (3, 20, 200):
            labels = ["Cleveland", "Hungary", "Long Beach"] if clients == 3 else None
            path = place / f"{methods}-methods-{clients}-clients"
            folders.append(make_folder(path, methods=names, clients=clients, labels=labels))
    return folders


def shoot(folders: list[Path], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        for folder in folders:
            page = write_page(folder)
            for width in (1400, 400):
                for scheme in ("light", "dark"):
                    size = {"width": width, "height": 900}
                    opened = Opened(browser, page, viewport=size, color_scheme=scheme)
                    draw_everything(opened.page)
                    target = out / f"{folder.name}-{width}-{scheme}.png"
                    opened.page.screenshot(path=target, full_page=True)
                    print(target, *opened.messages)
                    opened.close()
        browser.close()


def first_screen(folder: Path, target: Path) -> None:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        page = write_page(folder).absolute()
        opened = Opened(browser, page, viewport={"width": 1200, "height": 1120})
        opened.page.screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[2:]]
    if sys.argv[1].endswith(".png"):
        first_screen(given[0], Path(sys.argv[1]))
        sys.exit()
    with tempfile.TemporaryDirectory() as place:
        shoot(given or made_up(Path(place)), Path(sys.argv[1]))
