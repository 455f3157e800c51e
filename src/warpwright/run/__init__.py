"""One kernel at a time: launch it, check it, profile it."""
