"""Which bytes of which memory an instruction touches."""
