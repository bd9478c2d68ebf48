"""The small writes name only what they change."""

import pytest

from gpushare.kube.connection import MERGE_PATCH, STRATEGIC_PATCH, Connection
from gpushare.kube.errors import ApiError, Conflict
from gpushare.kube.patches import annotate_pod, nominate, patch_node, patch_node_status

from .fake_api import Answer, FakeApi, answer, pod, refuse

POD = "/api/v1/namespaces/default/pods/a"
NODE = "/api/v1/nodes/n1"


async def test_pod_annotations_with_preconditions(api: FakeApi, connection: Connection) -> None:
    api.once("PATCH", POD + "/status", answer(200, pod("a", 6)))
    after = await annotate_pod(
        connection, "default", "a", {"x": "1", "y": None}, uid="u-a", resource_version="5"
    )
    assert after.metadata.resource_version == "6"
    (request,) = api.requests
    assert request.headers["Content-Type"] == MERGE_PATCH
    assert request.body == {
        "metadata": {"uid": "u-a", "resourceVersion": "5", "annotations": {"x": "1", "y": None}}
    }


@pytest.mark.parametrize(
    "refusal",
    [
        refuse(409, "Conflict", "the object has been modified"),
        refuse(422, "Invalid", 'metadata.uid: Invalid value: "other": field is immutable'),
    ],
    ids=["version", "uid"],
)
async def test_another_object_or_version_is_a_conflict(
    api: FakeApi, connection: Connection, refusal: Answer
) -> None:
    api.once("PATCH", POD + "/status", refusal)
    with pytest.raises(Conflict):
        await annotate_pod(connection, "default", "a", {"x": "1"}, uid="other")


async def test_an_invalid_patch_is_no_conflict(api: FakeApi, connection: Connection) -> None:
    api.once("PATCH", POD + "/status", refuse(422, "Invalid", "metadata.annotations: too long"))
    with pytest.raises(ApiError) as caught:
        await annotate_pod(connection, "default", "a", {"x": "1"}, uid="u-a")
    assert caught.value.status == 422
    assert not isinstance(caught.value, Conflict)


async def test_nomination_is_set_and_cleared(api: FakeApi, connection: Connection) -> None:
    api.always.append(("PATCH", POD + "/status", answer(200, pod("a", 6))))
    await nominate(connection, "default", "a", "n1", uid="u-a", annotations={"nudge": "7"})
    await nominate(connection, "default", "a", None, uid=None)
    assert [r.body for r in api.requests] == [
        {
            "metadata": {"uid": "u-a", "annotations": {"nudge": "7"}},
            "status": {"nominatedNodeName": "n1"},
        },
        {"metadata": {}, "status": {"nominatedNodeName": None}},
    ]


async def test_node_annotations_and_labels_go_in_one_write(
    api: FakeApi, connection: Connection
) -> None:
    api.once("PATCH", NODE, answer(200, {"metadata": {"name": "n1", "uid": "u"}}))
    await patch_node(connection, "n1", annotations={"a": "1"}, labels={"l": None})
    assert api.requests[0].body == {"metadata": {"annotations": {"a": "1"}, "labels": {"l": None}}}


async def test_node_status_names_only_its_resources(api: FakeApi, connection: Connection) -> None:
    api.once("PATCH", NODE + "/status", answer(200, {"metadata": {"name": "n1", "uid": "u"}}))
    await patch_node_status(connection, "n1", capacity={"aliyun.com/gpu-count": "4"}, uid="u")
    (request,) = api.requests
    assert request.headers["Content-Type"] == STRATEGIC_PATCH
    both = {"aliyun.com/gpu-count": "4"}
    assert request.body == {
        "metadata": {"uid": "u"},
        "status": {"capacity": both, "allocatable": both},
    }
