"""The page's frame: one HTML document that loads nothing, its scripts named by their hashes."""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from simserve.report.charts import Figure
from simserve.report.sections import text


def document(title: str, body: str, figures: Mapping[str, Figure]) -> str:
    """A self-contained page; `figures` are drawn into the elements of the same ids, `{}` needs no plotly."""
    library = _plotly() if figures else ""
    drawing = _resource("page.js") if figures else ""
    scripts = [script for script in (library, drawing) if script]
    policy = _policy(scripts)
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{text(title)}</title><style>{_resource('page.css')}</style></head>\n<body><main>{body}</main>\n",
            f'<script type="application/json" id="charts">{_inert_json(figures)}</script>\n',
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body></html>\n",
        )
    )


def _policy(scripts: list[str]) -> str:
    """Nothing may load, and only these very scripts may run; plotly writes style elements of its own."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    rules = {
        "default-src": "'none'",
        "script-src": hashes or "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # late: the library is 5 MB

    return str(get_plotlyjs())


def _resource(name: str) -> str:
    return files("simserve.report").joinpath(name).read_text(encoding="utf-8")


def _inert_json(figures: Mapping[str, Figure]) -> str:
    """JSON that no HTML parser takes for markup."""
    plain = json.dumps(figures, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
