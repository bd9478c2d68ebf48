"""Talking to the node: its GPUs and its kubelet.

gpus          what a source of GPUs tells: an inventory, and changes of health
fake_gpus     GPUs from a file, for trying it out and for tests
inventory     indexes that stay with a GPU's UUID
kubelet       registering a device plugin, and noticing that the kubelet has started again
podresources  which device ids the kubelet says a container has
checkpoint    the same from the kubelet's own file, which knows the pod's UID
api           gRPC stubs, generated
"""
