"""The page, in a real browser: it is all there, nothing is fetched, and it fits a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from perf.lab import paper
from perf.lab.result import Column, Plot, Result, Series, Table, save
from perf.report import __main__ as report
from perf.report.page import page
from perf.report.plots import COLOURS, svg
from tests.perf.test_compare import measured, result

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium here: apt-get install chromium")
PLOTS = [
    Plot(
        key="line", title="A <line>", kind="line", x_label="history", y_label="ms", log_x=True, log_y=True,
        series=[
            Series(label="recompute", x=[100, 1_000], y=[10, 900], low=[9, 800], high=[11, 1_000]),
            Series(label="theirs", x=[100, 1_000], y=[5, 50], origin="paper"),
        ],
    ),
    Plot(
        key="bars", title="Bars", kind="bars", x_label="", y_label="ms",
        series=[Series(label="one", x=["a", "b"], y=[1, 2], low=[0.5, 1.5], high=[1.5, 3])],
    ),
    Plot(
        key="stacked", title="Layers", kind="stacked", x_label="", y_label="ms",
        series=[Series(label="lower", x=["a", "b"], y=[1, 2]), Series(label="upper", x=["a"], y=[3])],
    ),
    Plot(
        key="steps", title="Steps", kind="steps", x_label="ms", y_label="share", log_x=True,
        series=[Series(label="cdf", x=[1, 2, 4], y=[0.3, 0.6, 1.0])],
    ),
]  # fmt: skip


@pytest.fixture
def whole() -> Result:
    wide = [Column(name=f"column {number}", unit="ms") for number in range(30)]
    table = Table(key="wide", title="Wide & <b>bold</b>", columns=wide, rows=[[1.5] * 30, [None] * 30])
    missed = measured(100).model_copy(update={"aim": 50.0})
    return result(missed, tables=[table, paper.steps()], plots=PLOTS)


def shot(html: Path, picture: Path, width: int, height: int = 6000) -> np.ndarray:
    """A screenshot, red, green and blue from 0 to 1. The browser finds no network."""
    browse(html, f"--screenshot={picture}", f"--window-size={width},{height}")
    return np.asarray(imread(picture))[:, :, :3]


def browse(html: Path, *arguments: str) -> str:
    assert BROWSER is not None
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
    words += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={html.parent / 'profile'}"]
    done = subprocess.run([*words, *arguments, html.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def has_colour(picture: np.ndarray, colour: str) -> bool:
    """Whether a line's worth of it is there."""
    return int((np.abs(picture - np.array(to_rgb(colour))).max(axis=2) < 0.03).sum()) > 300


def test_the_page_fetches_nothing_and_says_what_is_the_papers(whole: Result) -> None:
    text = page([whole])
    without_names = re.sub(r'(xmlns(:\w+)?|rdf:resource|rdf:about)="[^"]*"|<!DOCTYPE[^>]*>', "", text)
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)|@import|<script', without_names)
    assert "<b>bold</b>" not in text
    assert "the paper's, on its hardware" in text
    assert "at most 50.00 ms: MISSED" in text
    assert text.count("<svg") == len(PLOTS)


def test_the_same_results_make_the_same_page(whole: Result) -> None:
    assert page([whole]) == page([whole])
    assert svg(PLOTS[0]) == svg(PLOTS[0])


@in_a_browser
@pytest.mark.parametrize("width", [1200, 600])
def test_a_screenshot_shows_the_plots(whole: Result, tmp_path: Path, width: int) -> None:
    html = tmp_path / "index.html"
    html.write_text(page([whole]), encoding="utf-8")
    picture = shot(html, tmp_path / "page.png", width)
    assert picture.shape[1] == width
    for colour in (COLOURS[0], COLOURS[1], "#f8c471"):  # two series, and the badge of what is the paper's
        assert has_colour(picture, colour), colour
    empty = tmp_path / "empty.html"
    empty.write_text(page([result(measured(1))]), encoding="utf-8")
    assert not has_colour(shot(empty, tmp_path / "empty.png", width), COLOURS[1])


@in_a_browser
def test_nothing_runs_out_of_a_phone(whole: Result, tmp_path: Path) -> None:
    """Wide tables scroll in their own box; the page itself does not. A frame is as narrow as a phone."""
    (tmp_path / "page.html").write_text(page([whole]), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        '<iframe id="phone" src="page.html" style="width:360px;height:800px;border:0"></iframe><script>'
        'onload = () => { const found = document.getElementById("phone").contentDocument.documentElement;'
        "document.title = `${found.clientWidth} ${found.scrollWidth}`; }</script>",
        encoding="utf-8",
    )
    said = browse(frame, "--allow-file-access-from-files", "--dump-dom")
    inner, needed = map(int, re.findall(r"<title>(\d+) (\d+)</title>", said)[0])
    assert inner == 360
    assert needed == inner


def test_the_command(whole: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(whole, tmp_path / "steps.json")
    assert report.main([str(tmp_path), "--png", str(tmp_path / "png")]) == 0
    assert "perf.steps" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert [path.name for path in sorted((tmp_path / "png").iterdir())] == [
        "steps-bars.png", "steps-line.png", "steps-stacked.png", "steps-steps.png"
    ]  # fmt: skip
    (tmp_path / "other.json").write_text("{}")
    assert report.main([str(tmp_path)]) == 1
    assert "other.json is no result" in capsys.readouterr().err
    assert report.main([str(tmp_path / "png")]) == 1
    assert "there are no results" in capsys.readouterr().err
