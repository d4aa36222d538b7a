"""Shown: what an answer shows of itself in Python; what draws it lies in layers above, and the package binds it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import pandas as pd

    from simserve.tables.columns import TableRows


class Teller(Protocol):
    """Makes what an answer shows."""

    def page_of(self, answer: Any) -> str:
        """Return the whole page as HTML."""

    def head_of(self, answer: Any) -> str:
        """Return the decision and the numbers that matter most as a piece of HTML."""

    def figure_of(self, answer: Any) -> Any:
        """Return the main chart, a plotly Figure. Raises SimserveError where there is none."""

    def sentence_of(self, answer: Any) -> str:
        """Return the answer in a sentence."""


_load: list[Callable[[], Teller]] = []


def bind(load: Callable[[], Teller]) -> None:
    """Let answers show themselves by what `load` returns when it is first needed."""
    _load[:] = [load]


class Shown:
    """An answer as Python and notebooks show it."""

    command: ClassVar[str]
    """The command that prints it: run, capacity, ..."""

    @property
    def rows(self) -> "TableRows":
        """The rows that its parquet file has."""
        raise NotImplementedError

    def to_frame(self) -> "pd.DataFrame":
        """Return the rows of its parquet file as a DataFrame."""
        from simserve.tables.columns import frame

        return frame(self.rows.fields, self.rows.columns)

    def page(self, path: str | Path) -> Path:
        """Write the page, one HTML file that works offline, and return its path. Raises OutputError."""
        from simserve.tables.files import replace_text

        replace_text(Path(path), _load[0]().page_of(self))
        return Path(path)

    def plot(self) -> Any:
        """Return the main chart, a plotly Figure. Raises SimserveError where there is none."""
        return _load[0]().figure_of(self)

    def _repr_html_(self) -> str:
        return _load[0]().head_of(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {_load[0]().sentence_of(self)}>"

    __str__ = __repr__
