"""Verdicts, tables, charts and traces of results. No module here runs a kernel."""
