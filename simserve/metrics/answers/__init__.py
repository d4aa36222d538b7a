"""Answers of studies: a frozen struct a question, which JSON, its schema, tables, sheets, terminal and page read."""
