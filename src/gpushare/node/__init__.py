"""The node below us: its GPUs, its kubelet, its container runtime. No decisions.

gpus          what a source of GPUs finds, and must do
nvml          the GPUs as the driver shows them
fake_gpus     GPUs that only a file says are there
kubelet       the kubelet's registration socket
containers    who has which device ids: the shape of what the next two say
checkpoint    the kubelet's own file of allocations
podresources  the kubelet's PodResources API
cdi           the node's CDI specifications, and ours
mailbox       the directory of each allocation, in which the hook leaves letters
api           generated from the kubelet's protobufs (scripts/protos)
"""
