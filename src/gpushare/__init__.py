"""GPU sharing for any Kubernetes cluster."""
