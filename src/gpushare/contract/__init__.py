"""Every name and shape on the wire, in one place; no logic.

names       labels, annotations, resources, environment variables, metrics, reason codes
units       the unit of GPU memory and the memory limit of a share
quantity    Kubernetes quantities ("4", "10Gi", "1k") as exact integers
allocation  the annotations that say which GPU a pod holds, both generations
inventory   the annotations that say what a node has
"""
