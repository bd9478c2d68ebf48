"""The smallest extender that works: every node fits, binds as it is told.

python stub_extender.py KUBECONFIG ADDRESS:PORT
"""

import json
import ssl
import sys
from base64 import b64decode
from pathlib import Path

import aiohttp
from aiohttp import web

CONFIG = json.loads(Path(sys.argv[1]).read_text())
SERVER = CONFIG["clusters"][0]["cluster"]
TOKEN = Path(CONFIG["users"][0]["user"]["tokenFile"])
TLS = ssl.create_default_context(
    cadata=b64decode(SERVER["certificate-authority-data"]).decode("ascii")
)


async def filter_(request: web.Request) -> web.Response:
    names = (await request.json())["NodeNames"]
    print("filter", json.dumps(names), flush=True)
    return web.json_response({"NodeNames": names})


async def prioritize(request: web.Request) -> web.Response:
    names = (await request.json())["NodeNames"]
    return web.json_response([{"Host": name, "Score": 0} for name in names])


async def preempt(request: web.Request) -> web.Response:
    body = await request.json()
    return web.json_response({"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]})


async def bind(request: web.Request) -> web.Response:
    args = await request.json()
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": args["PodName"],
            "uid": args["PodUID"],
            "annotations": {"stub": "bound"},
        },
        "target": {"kind": "Node", "name": args["Node"]},
    }
    url = (
        f"{SERVER['server']}/api/v1/namespaces/{args['PodNamespace']}"
        f"/pods/{args['PodName']}/binding"
    )
    token = TOKEN.read_text()  # noqa: ASYNC240 – a line in a file
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=binding, headers=headers, ssl=TLS) as answer,
    ):
        text = await answer.text()
    return web.json_response({"Error": "" if answer.status < 300 else text})


async def ok(_: web.Request) -> web.Response:
    return web.Response(text="ok")


app = web.Application(client_max_size=1 << 28)
for verb, handler in (
    ("filter", filter_),
    ("prioritize", prioritize),
    ("preempt", preempt),
    ("bind", bind),
):
    app.router.add_post(f"/gpushare-scheduler/{verb}", handler)
app.router.add_get("/readyz", ok)
host, _, port = sys.argv[2].rpartition(":")
web.run_app(app, host=host, port=int(port), print=None, handle_signals=True)
