"""From PTX text to the flat program that is compiled."""
