"""As much of a Kubernetes API as helm asks for when a chart looks up Secrets. No cluster, only what it would answer."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.helm.chart import Manifest

_NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


def _discovery(found: Sequence[Manifest]) -> dict[str, dict[str, Any]]:
    """Which kinds there are: those of the manifests."""
    kinds: dict[str, set[str]] = {}
    for one in found:
        kinds.setdefault(one["apiVersion"], set()).add(one["kind"])
    groups: list[dict[str, Any]] = []
    answers: dict[str, dict[str, Any]] = {
        "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for version, names in kinds.items():
        resources = [
            {"name": f"{name.lower()}s", "namespaced": True, "kind": name, "verbs": ["get"]} for name in sorted(names)
        ]
        place = "/api" if version == "v1" else "/apis"
        answers[f"{place}/{version}"] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        group, _, number = version.rpartition("/")
        if group:
            offered = {"groupVersion": version, "version": number}
            groups.append({"name": group, "versions": [offered], "preferredVersion": offered})
    return answers


@contextmanager
def kube_api(found: Sequence[Manifest], namespace: str) -> Iterator[str]:
    """Serve the Secrets among the manifests of a render; yields the address."""
    answers = _discovery(found)
    for one in found:
        if one["kind"] == "Secret":
            answers[f"/api/v1/namespaces/{namespace}/secrets/{one['metadata']['name']}"] = one

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            body = json.dumps(answer or _NOT_FOUND).encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
