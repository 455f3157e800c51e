"""Decodes PTX text into the flat program that is compiled."""
