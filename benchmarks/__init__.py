"""Perdure beside its peers, one suite per store: `python -m benchmarks sqlite`.

Every measurement runs in fresh processes on a fresh database, contenders alternate within a round, and medians over the
rounds are reported. Absolute figures belong to one machine; ratios of one run are what counts.
"""
