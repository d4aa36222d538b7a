"""The charts of a page, as the page's script reads them."""

import gzip
import json
import re
from base64 import b64decode
from typing import Any


def figures(page: str) -> dict[str, Any]:
    """Return each chart of a page by its id; none of a page without charts."""
    packed = re.search(r'<script type="application/gzip" id="charts">(.*?)</script>', page)
    drawn: dict[str, Any] = json.loads(gzip.decompress(b64decode(packed[1]))) if packed else {}
    return drawn
