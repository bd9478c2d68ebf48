"""The kubelet's gRPC stubs: device plugin v1beta1 and PodResources v1. Made by scripts/protos."""
