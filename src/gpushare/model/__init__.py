"""What a cluster is: requests, GPUs, who owns what, who holds what. Pure data and bookkeeping.

request  what a pod asks for, compiled to the chunks that must share a GPU
calls    what the kubelet asks a device plugin for it, and which pods it can confuse
gpus     a node's GPUs as they are published, and as they stand with what pods hold
holding  from a decision or an annotation to the units a pod holds on each GPU
ledger   what every pod holds, keyed by pod UID
owner    which application a pod belongs to
"""
