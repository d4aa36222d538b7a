"""Run the studies again and write what they print into their pages: python docs/studies/pages.py [NAME ...]

A page shows the output of its command below the block that names it, from one marker to the next.
"""

import re
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
SHOWN = re.compile(r"(?<=<!-- printed -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)


def names() -> list[str]:
    """Return the studies: names with a scenario, a script and a page."""
    return sorted(page.stem for page in HERE.glob("*.md") if page.with_suffix(".py").exists())


def shown(name: str) -> str:
    """Return the output that a page shows."""
    result = SHOWN.search((HERE / f"{name}.md").read_text(encoding="utf-8"))
    return result.group() if result else ""


def printed(name: str) -> str:
    """Return the output of the command."""
    study = import_module(name)
    text: str = study.printed(study.result())
    return text


if __name__ == "__main__":
    for each in sys.argv[1:] or names():
        page = HERE / f"{each}.md"
        text = printed(each)
        page.write_text(SHOWN.sub(lambda _, text=text: text, page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{page.name}\n{text}\n")
