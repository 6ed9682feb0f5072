"""A report in a real browser: every figure is drawn, shows the recorded values, and fits a phone in
the light and the dark colour scheme."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.run_files import comparison, make_run
from moonfl import report

pytestmark = pytest.mark.browser
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = comparison(tmp_path_factory.mktemp("runs"))
    for mu in range(6, 12):
        make_run(folder / f"moon-mu-{mu}", "moon", 0, mu=float(mu), scale="small")
    return folder


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return report.write([runs], tmp_path_factory.mktemp("report")).as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


def show(browser: Any, page: str, width: int = 1280, scheme: str = "light") -> None:
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page)
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_every_figure_is_drawn_in_both_schemes_and_widths(browser: Any, page: str) -> None:
    for width, scheme in ((1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")):
        show(browser, page, width, scheme)
        sizes = browser.execute_script(
            "const size = e => [e.getBoundingClientRect().width, e.getBoundingClientRect().height];"
            "return [...document.querySelectorAll('figure svg')]"
            ".map(s => [...size(s), ...size(s.querySelector('g[data-xlim]'))])"
        )
        assert len(sizes) > 20
        assert np.min(sizes) > 50, (width, scheme)


def test_nothing_is_wider_than_a_phone(browser: Any, page: str) -> None:
    for width in (320, 360, 768, 1280):
        show(browser, page, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        wide = browser.execute_script(
            "const outside = e => !e.closest('.scroll') && !e.closest('svg')"
            " && e.getBoundingClientRect().right > innerWidth + 1;"
            "return [...document.querySelectorAll('body *')].filter(outside)"
            ".map(e => e.outerHTML.slice(0, 80))"
        )
        assert wide == []
    show(browser, page, 360)
    boxes = (
        "return [...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)"
    )
    assert browser.execute_script(boxes), (
        "no table scrolls in its box: is this still the phone's layout?"
    )


def test_text_has_enough_contrast_in_both_schemes(browser: Any, page: str) -> None:
    """Check WCAG's contrast: 4.5 for text on the page and in figures, 2 for curves, which also have
    dashes and markers."""

    def light(colour: str) -> float:
        channels = np.array(numbers(colour)[:3]) / 255
        return float(
            np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
            @ [0.2126, 0.7152, 0.0722]
        )

    def contrast(a: str, b: str) -> float:
        low, high = sorted((light(a), light(b)))
        return (high + 0.05) / (low + 0.05)

    backs = []
    for scheme in ("light", "dark"):
        show(browser, page, scheme=scheme)
        style = "const c = (q, k) => getComputedStyle(document.querySelector(q))[k]; return "
        back = browser.execute_script(style + "c('figure', 'backgroundColor')")
        backs.append(light(back))
        for what in (
            "'body', 'color'",
            "'figcaption', 'color'",
            "'.files a', 'color'",
            "'#figure-accuracy-1 svg text', 'fill'",
        ):
            assert contrast(browser.execute_script(f"{style}c({what})"), back) >= 4.5, (
                scheme,
                what,
            )
        for k in range(2):
            assert (
                contrast(
                    browser.execute_script(f"{style}c('#accuracy-1-line-{k} path', 'stroke')"), back
                )
                >= 2
            )
    assert backs[0] > 0.9
    assert backs[1] < 0.05


def drawn(browser: Any, figure: str, line: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of a line, computed from the drawing and the limits of its axes."""
    frame, path, xlim, ylim = browser.execute_script(
        f"const a = document.getElementById('{figure}-axes');"
        "const p = q => document.querySelector(q + ' path').getAttribute('d');"
        f"return [p('#{figure}-frame'), p('#{figure}-{line}'), a.dataset.xlim, a.dataset.ylim]"
    )
    corners, points = (np.array(numbers(d)).reshape(-1, 2) for d in (frame, path))
    (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
    (x0, x1), (y0, y1) = (map(float, text.split()) for text in (xlim, ylim))
    return x0 + (points[:, 0] - left) / (right - left) * (x1 - x0), y0 + (bottom - points[:, 1]) / (
        bottom - top
    ) * (y1 - y0)


def test_curves_show_the_recorded_values(browser: Any, page: str, runs: Path) -> None:
    def recorded(method: str) -> np.ndarray:
        files = [runs / f"{method}-{seed}" / "rounds.jsonl" for seed in range(3)]
        return 100 * np.array(
            [[json.loads(line)["accuracy"] for line in f.read_text().splitlines()] for f in files]
        )

    show(browser, page)
    labels = browser.execute_script(
        "return [...document.querySelectorAll('#accuracy-1-legend_1 text')].map(t => t.textContent)"
    )
    for k, method in (
        (labels.index("FedAvg, 3 seeds"), "fedavg"),
        (labels.index("MOON mu=5, 3 seeds"), "moon"),
    ):
        rounds, mean = drawn(browser, "accuracy-1", f"line-{k}")
        expected = recorded(method)
        assert rounds == pytest.approx(np.arange(1, 31), abs=0.01)
        assert mean == pytest.approx(expected.mean(axis=0), abs=0.01)
        _, edge = drawn(browser, "accuracy-1", f"line-{k}-band")
        for point in (
            expected.mean(axis=0) + sign * expected.std(axis=0, ddof=1) for sign in (-1, 1)
        ):
            assert np.abs(edge[:, None] - point).min(axis=0).max() < 0.01


def test_the_console_is_empty_and_nothing_is_downloaded(browser: Any, page: str) -> None:
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    show(browser, page)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    }
    assert page in urls
    assert {url for url in urls if not url.startswith("data:")} == {page}
