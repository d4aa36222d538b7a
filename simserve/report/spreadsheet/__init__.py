"""Results as sheets of a workbook, or CSV files."""
