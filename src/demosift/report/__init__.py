"""Statistics, tables and pages, made from result files only and without JAX."""

from demosift.report.page import write_report
from demosift.report.table import TableRow, json_table, markdown_table, result_table, rich_tables
from demosift.report.weights import weight_histogram
from demosift.results.folder import read_results
from demosift.results.weights import write_weights

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
