"""The net under answers: what ten small studies say, as JSON, as sentences, as cells and as schemas.

Each study of `studies.py` runs through the command line as a user would run it. What it answers is pinned in four
files, each `{study: {id: value}}` with a line an entry:

- `answers.json`: the JSON of each answer, and exit codes. Keys are exact, numbers agree to a relative 1e-12
  (`differences.py`), and what depends on the machine or the release is masked by name (`answers.py`).
- `sentences.json`: each sentence of terminal and page, as `{"numbers": ["3", "40"], "words": "... {} of {} ..."}`.
  A reword changes `words` alone; `numbers` still hold, as they are printed.
- `cells.json`: the cells of the workbooks, row by row; a formula is `[text, value]`.
- `schemas.json`: names, Arrow types, nullability and metadata keys of each parquet file.

The id of a sentence is a place and a position, never its words, so that it outlives a reword:

- `terminal.<command>.out.<paragraph>.<line>`, with `err` for messages; `md` and `xml` for the files of `check`.
- `page.<section>.<kind>.<n>`: the section's id in the page (or header, nav, footer), and the element's tag or class, as
  in `page.header.tile.2`. `page.percentiles.table.1.<row>` has the cells of a row, joined by " | ".
- `page.chart.<id>`: title, axes, notes and legend of a chart, without its data.

These files may change only with a change that is meant to move, add or reword something, and the changelog then says
so in a sentence. `python -m tests.golden_answers` writes them again, and says how many numbers and words changed, and
how many entries are new or missing.
"""
