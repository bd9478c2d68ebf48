"""Holding a container to its GPU memory.

backend     what a node can do about it, and how a container is prepared for it
limits      how much a container may use, and the file that tells its processes
region      what the processes of a container use: the file they share
tmpfs       where these files lie
probe       which backend works on a node, and why another does not
installing  the interposer on the host, under a versioned name

Nothing here talks to the API server or to the kubelet.
"""
