"""Talking to the node: its GPUs and its kubelet.

nvml  GPUs and their health through NVIDIA's management library
api   gRPC stubs of the kubelet's device plugin and pod resources APIs, generated (scripts/protos)
"""
