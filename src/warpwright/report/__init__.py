"""What people look at: verdicts, tables and drawings. Nothing here runs a kernel."""
