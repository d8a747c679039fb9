"""Statistics, tables and the page. Reads result files only; never imports JAX."""

from demosift.report.page import write_report
from demosift.report.table import TableRow, json_table, markdown_table, result_table, rich_tables
from demosift.report.weights import weight_histogram, write_weights
from demosift.results.reading import read_results

__all__ = [
    "TableRow",
    "json_table",
    "markdown_table",
    "read_results",
    "result_table",
    "rich_tables",
    "weight_histogram",
    "write_report",
    "write_weights",
]
