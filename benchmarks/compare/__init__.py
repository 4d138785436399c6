"""Two checkouts of Perdure side by side: `python -m benchmarks.compare BASE`.

Side A is a commit, side B the working tree. Short runs of both alternate, so that both meet the same moods of the machine,
and what is reported is the ratio within each pair of runs. The code that measures is the working tree's on both sides, so it
uses the public API only.
"""
