"""What the site of the documentation has beside its hand-written pages: the reference and the pages of answers.

mkdocs calls the functions `on_*`. A link from a page to a file outside docs/ goes to the repository.
"""

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
import outputs_reference
import reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {
    "reference/cli.md": reference.commands,
    "reference/outputs.md": outputs_reference.outputs_reference,
    "reference/catalog.md": reference.catalog,
    "reference/api.md": reference.api,
}
ANSWERS = {"chat-burst": ("run", "@chat_burst"), "capacity": ("capacity", "@chat_burst")}
"""Pages of answers that the site shows, by file name, with the command that writes each."""


def on_config(config: "MkDocsConfig") -> None:
    """Set the address of the repository, which pyproject.toml names."""
    config.repo_url = repository()


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the reference, and pages of answers."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    for name, command in ANSWERS.items():
        files.append(File.generated(config, f"pages/{name}.html", content=answer_page(*command)))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: object) -> str:
    """Send links that leave the pages to the repository."""

    def target(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(DOCS / Path(page.file.src_uri).parent / match[1]))
        if path.is_relative_to(DOCS) and path.suffix not in {".py", ".yaml"}:
            return match[0]
        return f"]({repository()}/blob/main/{path.relative_to(ROOT).as_posix()}{match[2] or ''})"

    return re.sub(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", target, markdown)


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
