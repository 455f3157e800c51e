"""The micro-benchmarks of ``bench/micro.py``: each file measures one part of a Hopper GPU."""
