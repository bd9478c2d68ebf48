"""Binding a pod to a node, annotated with the decision, in one write.

One POST to `pods/NAME/binding` carries the node, the annotations and the pod's UID. The API server
merges the annotations into the pod in the same transaction (a forged value of a user's is
overwritten), and refuses with 409, changing nothing, a pod that is bound already, being deleted,
held by scheduling gates, or another one under the same name. Whether the node exists it does not
check.

A 409 does not say which of these it is, and the most frequent one is our own earlier POST whose
answer got lost. So look at the pod: bound to this node with our decision is success.

Time is the caller's: everything ends within `deadline_s`. The first POST gets half of it at most,
since a pooled connection may be half open and the second try then succeeds at once; what may have
gone through (a time-out, a 5xx) is followed by another POST, whose 409 tells. When that is still
not known at the end, the outcome is Undecided: the pod may yet turn out bound, and the reservation
has to stay until the watch or a list tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.kube.connection import Connection
from gpushare.kube.errors import (
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    TooManyRequests,
    Unreachable,
)
from gpushare.kube.objects import Pod
from gpushare.kube.resources import checked_name, pod_path

RETRY_PAUSE_S = 0.05
"""Between tries: long enough not to spin, short against a deadline of seconds."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The pod is on the node with our decision. `before`: an earlier POST had done it."""

    before: bool = False


@dataclass(frozen=True, slots=True)
class BoundOtherwise:
    """The pod is bound already, to another node or with another decision; these are its."""

    node: str
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PodGone:
    """The pod does not exist, or is being deleted (`terminating`): nothing to bind."""

    terminating: bool = False


@dataclass(frozen=True, slots=True)
class PodReplaced:
    """Another pod bears the name now."""

    uid: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refused (forbidden, invalid, gated) or never sent: certainly not bound by this call."""

    error: KubeError


@dataclass(frozen=True, slots=True)
class Undecided:
    """No answer told whether an earlier POST went through: the pod may yet turn out bound."""

    error: KubeError


Outcome = Bound | BoundOtherwise | PodGone | PodReplaced | Rejected | Undecided


async def bind(
    connection: Connection,
    namespace: str,
    name: str,
    uid: str,
    node: str,
    annotations: Mapping[str, str],
    *,
    decision_keys: frozenset[str],
    deadline_s: float,
) -> Outcome:
    """Bind the pod to `node` with `annotations`; ends within `deadline_s` seconds.

    `decision_keys` are the annotations that make up the decision: a pod that is bound to `node`
    already counts as ours if it agrees in these (others, like the time, differ between tries).

    Raises: InvalidName for a pod or node that cannot exist; nothing else, failures are outcomes.
    """
    path = pod_path(namespace, name)
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "annotations": dict(annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": checked_name(node)},
    }
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    attempt_s = deadline_s / 2
    may_have_bound = False
    while True:
        error: KubeError
        pause_s = RETRY_PAUSE_S
        try:
            await connection.post(f"{path}/binding", body, timeout_s=attempt_s)
            return Bound()
        except (Conflict, NotFound) as refusal:
            ours = {key: annotations[key] for key in decision_keys if key in annotations}
            outcome = await _look(connection, path, uid, node, ours, refusal, end - loop.time())
            if isinstance(outcome, Rejected):
                return _at_the_end(outcome.error, may_have_bound)
            if not isinstance(outcome, Undecided):
                return outcome
            error = outcome.error
            may_have_bound = may_have_bound or isinstance(refusal, Conflict)
        except TooManyRequests as refusal:
            error = refusal
            pause_s = refusal.retry_after_s or pause_s
        except ApiError as refusal:
            if refusal.status < 500:
                return _at_the_end(refusal, may_have_bound)
            error = refusal
            may_have_bound = True
        except Unreachable as silence:
            error = silence
            may_have_bound = may_have_bound or silence.sent
        except KubeError as failure:
            error = failure  # no credentials at the moment
        attempt_s = end - loop.time() - pause_s
        if attempt_s <= 0:
            return _at_the_end(error, may_have_bound)
        await asyncio.sleep(pause_s)


def _at_the_end(error: KubeError, may_have_bound: bool) -> Outcome:
    return Undecided(error) if may_have_bound else Rejected(error)


async def _look(
    connection: Connection,
    path: str,
    uid: str,
    node: str,
    ours: Mapping[str, str],
    refusal: ApiError,
    left_s: float,
) -> Outcome:
    """What the pod says after a 409 or 404; Undecided if it cannot be asked."""
    try:
        pod = await connection.get(path, Pod, timeout_s=max(left_s, 0.01))
    except NotFound:
        return PodGone()
    except KubeError as error:
        return Undecided(error)
    meta = pod.metadata
    if meta.uid != uid:
        return PodReplaced(meta.uid)
    if pod.spec.node_name:
        has = meta.annotations or {}
        if pod.spec.node_name == node and all(has.get(k) == v for k, v in ours.items()):
            return Bound(before=True)
        return BoundOtherwise(pod.spec.node_name, has)
    if meta.deletion_timestamp:
        return PodGone(terminating=True)
    return Rejected(refusal)
