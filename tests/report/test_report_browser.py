"""The page in a real browser: it loads, answers the mouse and the keyboard, and asks nobody."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pgfed.report.figures.colours import DARK
from pgfed.report.rendering import write_page
from report.folders import make_folder
from report.test_report_page import EVIL_LABEL, hostile

CHROMIUM = shutil.which("chromium")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
if CHROMIUM is None and os.environ.get("CI") != "true":
    pytest.skip("chromium is not installed (scripts/system-packages)", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")
Page = sync_api.Page


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with sync_api.sync_playwright() as playwright:
        assert CHROMIUM is not None, "chromium is not installed (scripts/system-packages)"
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(make_folder(tmp_path_factory.mktemp("browser") / "run"))


PATIENCE = 120_000  # ms: a machine may be busy with other things


class Opened:
    """A page, and everything it complained about or asked for."""

    def __init__(self, browser: object, path: Path, **options: object) -> None:
        self.context = browser.new_context(**options)  # type: ignore[attr-defined]
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: self.messages.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def plot(self, figure: str, panel: int = 0) -> object:
        """Scroll a plot into view, so that it is drawn."""
        found = self.page.locator(f'.plot[data-figure="{figure}"][data-panel="{panel}"]')
        found.scroll_into_view_if_needed()
        self.page.wait_for_function("element => element.data", arg=found.element_handle())
        return found

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def opened(browser: object, report: Path) -> Iterator[Opened]:
    page = Opened(browser, report, viewport={"width": 1400, "height": 900})
    yield page
    page.close()


def first_column(page: Page, table: str) -> list[str]:
    rows = page.locator(f"#{table} tbody tr").all()
    return [row.get_attribute("data-method") for row in rows]


def draw_everything(page: Page) -> None:
    for plot in page.locator(".plot[data-figure]").all():
        plot.scroll_into_view_if_needed()
        page.wait_for_function("element => element.data", arg=plot.element_handle())


def test_it_loads_without_complaint_and_without_a_request(opened: Opened, report: Path) -> None:
    draw_everything(opened.page)
    assert opened.messages == []
    assert opened.requests == [report.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_sticks_out(browser: object, report: Path, width: int, scheme: str) -> None:
    viewport = {"width": width, "height": 800}
    opened = Opened(browser, report, viewport=viewport, color_scheme=scheme)
    draw_everything(opened.page)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    ink = opened.page.evaluate("getComputedStyle(document.body).color")
    tick = opened.page.evaluate(
        "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    )
    assert tick == ink  # figures follow the page into the dark
    assert opened.messages == []
    opened.close()


def test_tables_sort_by_mouse_and_keyboard(opened: Opened) -> None:
    page = opened.page
    assert first_column(page, "results") == ["local", "fedavg", "fedavg-local", "pgfed"]
    page.get_by_role("button", name="Best on test").first.click()
    descending = first_column(page, "results")
    assert descending[-1] == "fedavg"
    head = page.locator("#results thead th", has_text="Best on test")
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert first_column(page, "results") == descending[::-1]
    page.locator("#results thead button", has_text="Gain over").click()  # Local has none
    assert first_column(page, "results")[-1] == "local"
    page.locator("#results thead button").nth(0).click()
    names = first_column(page, "results")
    assert names == sorted(names)


def test_a_method_can_be_hidden_and_shown(opened: Opened) -> None:
    page = opened.page
    plot = opened.plot("curves")

    def visible() -> list[str]:
        found: list[str] = page.evaluate(
            "element => element.data.filter((t) => t.visible).map((t) => t.meta)",
            plot.element_handle(),  # type: ignore[attr-defined]
        )
        return found

    assert "pgfed" in visible()
    button = page.locator('#curves .legend button[data-method="pgfed"]')
    button.focus()
    page.keyboard.press("Space")
    assert "pgfed" not in visible()
    assert "fedavg" in visible()
    for other in page.locator('.legend button[data-method="pgfed"]').all():
        assert other.get_attribute("aria-pressed") == "false"
    assert "off" in page.locator('#results tr[data-method="pgfed"]').get_attribute("class")
    button.click()
    assert "pgfed" in visible()


def test_a_client_can_be_picked_from_the_list(opened: Opened) -> None:
    page = opened.page
    page.locator("select.pick").select_option("4")
    box = page.locator(".picked")
    assert "Client 4:" in box.inner_text()
    assert box.locator("tbody tr").count() == 4
    assert box.locator(".js-plotly-plot").count() == 3  # its curves, its row and column of A
    plot = opened.plot("matrix")
    shapes = page.evaluate("e => e.layout.shapes.length", plot.element_handle())  # type: ignore[attr-defined]
    assert shapes == 2
    page.locator("select.pick").select_option("")
    assert box.inner_text() == ""


def test_an_address_opens_a_client_and_marks_its_row(browser: object, report: Path) -> None:
    opened = Opened(browser, report, viewport={"width": 1000, "height": 900})
    page = opened.page
    page.goto(report.as_uri() + "#client=7")
    sync_api.expect(page.locator(".picked p").first).to_contain_text("Client 7:")
    sync_api.expect(page.locator("tr.chosen th")).to_have_text("7")
    page.locator('tr[data-client="3"] a').click()
    sync_api.expect(page.locator(".picked p").first).to_contain_text("Client 3:")
    assert page.url.endswith("#client=3")
    page.locator("select.pick").select_option("")
    assert "#client" not in page.url
    assert opened.messages == []
    opened.close()


def test_a_client_can_be_picked_in_a_figure(opened: Opened, report: Path) -> None:
    page = opened.page
    plot = opened.plot("gains")
    bars = plot.locator(".bars .point path").all()  # type: ignore[attr-defined]
    place = bars[0].bounding_box()
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    expected = page.evaluate("e => e.data[0].customdata[0][0]", plot.element_handle())  # type: ignore[attr-defined]
    assert page.locator("select.pick").input_value() == str(expected)
    assert f"Client {expected}:" in page.locator(".picked").inner_text()


def test_the_heat_map_shows_the_number_under_the_mouse(opened: Opened, report: Path) -> None:
    page = opened.page
    plot = opened.plot("matrix")
    with np.load(report.parent / "pgfed" / "seed-0" / "alpha.npz") as arrays:
        change = arrays["alpha"] - np.float32(arrays["start"])
        met = arrays["meetings"]
    order = page.evaluate("e => e.data[0].meta.order", plot.element_handle())  # type: ignore[attr-defined]
    area = plot.locator(".nsewdrag").first.bounding_box()  # type: ignore[attr-defined]
    n = len(order)
    pairs = [(r, c) for r in range(n) for c in range(n) if met[order[r], order[c]]]
    for row, column in (pairs[0], pairs[len(pairs) // 2], pairs[-1]):
        page.mouse.move(
            area["x"] + (column + 0.5) * area["width"] / n,
            area["y"] + (row + 0.5) * area["height"] / n,
        )
        i, j = order[row], order[column]
        shown = f"client {i} weighs client {j}: {change[i, j]:+.4f}".replace("-", "−")
        hover = plot.locator(".hoverlayer .hovertext")  # type: ignore[attr-defined]
        sync_api.expect(hover).to_contain_text(shown)
        sync_api.expect(hover).to_contain_text(f"met {met[i, j]}")


def test_views_change(opened: Opened) -> None:
    page = opened.page
    plot = opened.plot("curves")
    title = plot.locator(".xtitle")  # type: ignore[attr-defined]
    sync_api.expect(title).to_have_text("round")
    page.locator('select[data-figure="curves"]').select_option(label="against bytes sent")
    sync_api.expect(title).to_have_text("bytes sent so far, both directions")


@pytest.mark.parametrize(
    ("width", "titles"),
    [(400, ["What each gained over local"]),
     (1400, ["What each gained over local", "What each holds"])],
)  # fmt: skip
def test_a_narrow_screen_leaves_out_how_much_clients_hold(
    browser: object, report: Path, width: int, titles: list[str]
) -> None:
    opened = Opened(browser, report, viewport={"width": width, "height": 900})
    plot = opened.plot("gains")
    found = plot.locator(".annotation-text")  # type: ignore[attr-defined]
    sync_api.expect(found).to_have_text(titles)
    halves = plot.locator(".bars .points")  # type: ignore[attr-defined]
    sync_api.expect(halves).to_have_count(len(titles))
    assert all(
        box.bounding_box()["x"] + box.bounding_box()["width"] <= width for box in found.all()
    )
    opened.close()


def test_what_is_read_first_is_in_sight_on_a_narrow_screen(browser: object, report: Path) -> None:
    opened = Opened(browser, report, viewport={"width": 400, "height": 900})
    lost = opened.page.locator("#results thead th", has_text="Clearly lost").bounding_box()
    assert lost["x"] + lost["width"] <= 400
    opened.close()


def test_lines_are_labelled_where_they_end_and_ties_are_named(
    browser: object, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "run", methods=["local", "fedper"])
    for seed in (0, 1):  # the very same rounds under another name
        source = folder / "fedper" / f"seed-{seed}" / "history.jsonl"
        (folder / "local" / f"seed-{seed}" / "history.jsonl").write_text(source.read_text())
    opened = Opened(browser, write_page(folder), viewport={"width": 1000, "height": 900})
    plot = opened.plot("curves")
    label = plot.locator(".annotation-text")  # type: ignore[attr-defined]
    sync_api.expect(label).to_have_count(1)
    sync_api.expect(label).to_have_text("fedper= local")
    opened.page.locator('#curves .legend button[data-method="fedper"]').click()
    sync_api.expect(label).to_have_text("local")
    opened.close()


@pytest.mark.parametrize("width", [400, 1400])
def test_labels_do_not_lie_on_one_another(browser: object, report: Path, width: int) -> None:
    opened = Opened(browser, report, viewport={"width": width, "height": 900})
    plot = opened.plot("curves")
    labels = plot.locator(".annotation-text")  # type: ignore[attr-defined]
    sync_api.expect(labels).to_have_count(4)
    boxes = sorted((label.bounding_box() for label in labels.all()), key=lambda box: box["y"])
    for above, below in pairwise(boxes):
        assert above["y"] + above["height"] <= below["y"] + 2
    assert all(box["x"] + box["width"] <= width for box in boxes)
    opened.close()


def test_colours_change_with_the_light(opened: Opened) -> None:
    plot = opened.plot("curves")
    line = "e => e.data.find((t) => t.meta === 'pgfed').line.color"
    light = opened.page.evaluate(line, plot.element_handle())  # type: ignore[attr-defined]
    opened.page.emulate_media(color_scheme="dark")
    opened.page.wait_for_function(
        f"e => ({line})(e) === '{DARK[light]}'", arg=plot.element_handle()
    )  # type: ignore[attr-defined]


def test_print_draws_everything(browser: object, report: Path) -> None:
    opened = Opened(browser, report, viewport={"width": 1400, "height": 900})
    pdf = opened.page.pdf(format="A4", prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF")
    plots = opened.page.locator(".plot[data-figure]")
    assert plots.count() == opened.page.locator(".plot[data-figure].js-plotly-plot").count()
    assert opened.messages == []
    opened.close()


def test_hostile_names_are_only_names(browser: object, tmp_path: Path) -> None:
    path = write_page(hostile(tmp_path))
    opened = Opened(browser, path, viewport={"width": 1000, "height": 900})
    draw_everything(opened.page)
    opened.page.locator("select.pick").select_option("0")
    assert EVIL_LABEL in opened.page.locator(".picked").inner_text()
    assert opened.page.locator("img[src=x]").count() == 0
    assert opened.messages == []
    assert opened.requests == [path.as_uri()]
    opened.close()
