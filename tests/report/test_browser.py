"""A real browser draws the page: no errors on its console, every chart there, in light and in dark, wide and narrow."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from simserve.report.page import render
from tests.report.synthetic import synthetic

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")


def opened(page: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """The document after its scripts ran, and what they said on the console."""
    command = [str(BROWSER), *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return run.stdout, "\n".join(line for line in run.stderr.splitlines() if "CONSOLE" in line)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(synthetic(3000, pools=("prefill & <b>more</b>", "decode"))), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("flags", "ink"),
    [
        (("--window-size=1280,3000", "--blink-settings=preferredColorScheme=1"), "rgb(91, 91, 85)"),
        (("--window-size=520,5000", "--blink-settings=preferredColorScheme=0"), "rgb(170, 170, 162)"),
    ],
    ids=["light and wide", "dark and narrow"],
)
def test_the_browser_draws_every_chart_in_the_pages_colors_and_complains_of_nothing(
    page: Path, tmp_path: Path, flags: tuple[str, ...], ink: str
) -> None:
    dom, console = opened(page, tmp_path, *flags)
    assert console == ""
    assert 'data-drawn="6"' in dom
    for name in ("ttft", "ttft-tail", "tpot", "tpot-tail", "prompt", "time"):
        chart = dom.split(f'id="{name}"')[1].split('class="card"')[0]
        assert chart.count('class="js-line"') >= 1
    body = re.sub(r"<script.*?</script>|<style.*?</style>", "", dom, flags=re.S)
    assert "$" not in re.sub(r"<pre>.*?</pre>", "", body, flags=re.S)
    assert f"fill: {ink}" in body


def test_a_page_without_charts_opens_in_silence(tmp_path: Path) -> None:
    page = tmp_path / "empty.html"
    page.write_text(render(synthetic(0)), encoding="utf-8")
    dom, console = opened(page, tmp_path / "profile")
    assert console == ""
    assert "Nothing was measured" in dom
