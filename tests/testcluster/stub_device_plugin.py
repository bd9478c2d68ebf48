"""A throwaway device plugin: COUNT devices of RESOURCE, each named in the container's environment.

python stub_device_plugin.py RESOURCE COUNT [CDI_DEVICE]
"""

import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc

from gpushare.node.api import deviceplugin_pb2 as pb
from gpushare.node.api import deviceplugin_pb2_grpc as rpc

FOLDER = Path("/var/lib/kubelet/device-plugins")


class Plugin(rpc.DevicePluginServicer):
    def __init__(self, count, cdi):
        self.count, self.cdi = count, cdi

    def GetDevicePluginOptions(self, request, context):
        return pb.DevicePluginOptions()

    def ListAndWatch(self, request, context):
        devices = [pb.Device(ID=f"d{i}", health="Healthy") for i in range(self.count)]
        yield pb.ListAndWatchResponse(devices=devices)
        threading.Event().wait()

    def Allocate(self, request, context):
        answer = pb.AllocateResponse()
        for one in request.container_requests:
            container = answer.container_responses.add()
            container.envs["STUB_DEVICES"] = ",".join(sorted(one.devices_ids))
            if self.cdi:
                container.cdi_devices.add(name=self.cdi)
        return answer


def main():
    resource, count, cdi = sys.argv[1], int(sys.argv[2]), "".join(sys.argv[3:])
    socket = FOLDER / "stub.sock"
    socket.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    rpc.add_DevicePluginServicer_to_server(Plugin(count, cdi), server)
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    authority = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix://{FOLDER / 'kubelet.sock'}", options=authority) as channel:
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=socket.name, resource_name=resource
        )
        rpc.RegistrationStub(channel).Register(request)
    print("registered", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
