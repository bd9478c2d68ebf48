"""What people and scripts read: one report of a cluster, and its renderings.

report   the facts, in the shape of the JSON output
table    the tables of `kubectl inspect cgpu`
columns  how tables are laid out and coloured
json     the report as JSON and YAML
usage    who uses how much: by namespace, by owner
notes    what is wrong with the cluster, a line each
reasons  reason codes as sentences
"""
