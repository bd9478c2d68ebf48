"""`kubectl inspect cgpu`: what is allocated where, from the API objects alone.

arguments  the command line
dump       files and stdin -> the bytes of API objects, JSON or YAML
decode     those bytes -> nodes, and the pods that ask for GPU memory; all others are skipped
kubectl    the same from a live cluster, through `kubectl get --raw`
output     objects and options -> what is printed where
watch      `-w`: again when something has changed
main       wiring

It is meant to start at once: argparse and msgspec only, everything else is imported where it is
needed.
"""
