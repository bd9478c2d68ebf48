"""What people and scripts read: one report of a cluster, and its renderings.

report   the facts, in the shape of the JSON output
table    the tables of `kubectl inspect cgpu`
reasons  reason codes as sentences
"""
