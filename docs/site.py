"""What the site of the documentation has beside its hand-written pages: the reference and the pages of answers.

mkdocs calls the functions `on_*`. A link from a page to a file outside docs/ goes to the repository.

    python docs/site.py                # draws the README's picture of a page anew, with a Chromium
    python docs/site.py league.json    # writes the tables and the picture of league.md from `lab league FOLDER --json`
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs runs this file alone

from docs import reference
from docs.outputs_reference import outputs_reference
from docs.scenario_reference import scenario_reference
from simserve.lab.league_page import (
    PEERS_HEAD,
    SETS_HEAD,
    SUMMARY_HEAD,
    figure_cells,
    peer_rows,
    render,
    set_rows,
)

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = ROOT / "docs"
REFERENCE = {
    "cli": reference.commands,
    "scenario": scenario_reference,
    "outputs": outputs_reference,
    "catalog": reference.catalog,
    "api": reference.api,
}
"""Pages of the reference by name."""
ANSWERS = {"chat-burst": ("run", "@chat_burst")}
"""Pages of answers that the site shows, by file name, with the command that writes each."""


def on_config(config: "MkDocsConfig") -> None:
    """Set the address of the repository, which pyproject.toml names, and let charts of notebooks need no network."""
    config.repo_url, config.repo_name = repository(), "simserve"
    os.environ["PLOTLY_RENDERER"] = "notebook"


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the reference, and pages of answers."""
    from mkdocs.structure.files import File

    for name, page in REFERENCE.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    for name, command in ANSWERS.items():
        files.append(File.generated(config, f"pages/{name}.html", content=answer_page(*command)))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: object) -> str:
    """Send links that leave the pages to the repository."""

    def target(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(DOCS / Path(page.file.src_uri).parent / match[2]))
        if path.is_relative_to(DOCS) and path.suffix not in {".py", ".yaml"}:
            return match[0]
        return f"{match[1]}{repository()}/blob/main/{path.relative_to(ROOT).as_posix()}"

    return re.sub(r"(\]\(|^\[[^\]]+\]: )(?!\w+:)([^)#\s]+)", target, markdown, flags=re.MULTILINE)


def on_post_page(output: str, **_: object) -> str:
    """Leave out the formulas of plotly's charts, which would load a script from elsewhere."""
    return re.sub(r'<script src="https://cdnjs[^>]*></script>', "", output)


@cache
def repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def answer_page(*command: str) -> bytes:
    """Return the page that a command writes, run in an empty folder."""
    with TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "simserve", *command, "--out", "answer", "--quiet"], cwd=folder, check=True
        )
        return (Path(folder) / "answer" / "report.html").read_bytes()


def draw(page: bytes, name: str, size: str) -> None:
    """Draw a picture of a page in docs/images; size in pixels: `1200,1500`."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("docs/site.py needs chromium or google-chrome to draw the picture")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_bytes(page)
        options = ["--headless", "--disable-gpu", "--no-sandbox", "--hide-scrollbars", f"--window-size={size}"]
        waits = "--virtual-time-budget=10000"  # ms, for the charts
        picture = f"--screenshot={DOCS / 'images' / name}"
        subprocess.run([browser, *options, waits, picture, path.as_uri()], check=True, capture_output=True)


def write_league(league: Path) -> None:
    """Write the tables of league.md and its picture anew, from what `simserve lab league --json` printed."""
    facts = json.loads(league.read_text(encoding="utf-8"))
    text = (DOCS / "league.md").read_text(encoding="utf-8")
    for name, rows in league_tables(facts).items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        lines = [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
        text = "".join([before, begin, *(f"{line}\n" for line in lines), end, rest.partition(end)[2]])
    (DOCS / "league.md").write_text(text, encoding="utf-8")
    draw(render(facts, charts_alone=True).encode(), "league.png", "1200,1020")


def league_tables(facts: dict[str, Any]) -> dict[str, list[Sequence[str]]]:
    """Return the rows of the tables by their names in league.md, the heads first."""
    totals = [("no", facts["not_fitted"]), ("partly", facts["partly_fitted"])]
    return {
        "summary": [SUMMARY_HEAD, *((name, f"{each['n_runs']}", *figure_cells(each)) for name, each in totals)],
        "sets": [SETS_HEAD, *set_rows(facts)],
        "peers": [PEERS_HEAD, *peer_rows(facts)],
    }


if __name__ == "__main__":
    if sys.argv[1:]:
        write_league(Path(sys.argv[1]))
    else:
        draw(answer_page(*ANSWERS["chat-burst"]), "report.png", "1200,1500")
