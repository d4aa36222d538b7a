"""The charts of a page, as the page's script reads them."""

import gzip
import json
import re
from base64 import b64decode
from typing import Any


def figures(page: str) -> dict[str, Any]:
    """Return each chart of a page by its id."""
    packed = re.search(r'<script type="application/gzip" id="charts">(.*?)</script>', page)
    assert packed
    drawn: dict[str, Any] = json.loads(gzip.decompress(b64decode(packed[1])))
    return drawn
