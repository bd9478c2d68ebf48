"""Which application a pod belongs to, so that replicas can be kept apart."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """The controller whose replicas a pod is one of; a bare pod is its own owner."""

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def owner_of(
    namespace: str, pod_name: str, controller: tuple[str, str] | None, template_hash: str | None
) -> Owner:
    """The owner of a pod.

    controller     (kind, name) of the pod's controlling owner reference, if it has one
    template_hash  the pod's `pod-template-hash` label, if it has one

    A ReplicaSet stands for its Deployment: two revisions of one Deployment are one application.
    Its name is the Deployment's with the template hash at the end.
    """
    if controller is None:
        return Owner(namespace, "Pod", pod_name)
    kind, name = controller
    if kind == "ReplicaSet" and template_hash and name.endswith(f"-{template_hash}"):
        return Owner(namespace, "Deployment", name.removesuffix(f"-{template_hash}"))
    return Owner(namespace, kind, name)
