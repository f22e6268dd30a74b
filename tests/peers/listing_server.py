"""A stdio server of the legacy era, whose tools are the words in a file.

    python listing_server.py FILE

A call gives back the trace that it belongs to, else the tool's name. While the file does not exist, `tools/list` fails. It says nothing when the file changes.
"""

import json
import sys
from pathlib import Path

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "listing", "version": "1"}}


def answer(request: dict, file: Path) -> dict:
    match request["method"]:
        case "initialize":
            return {"result": HELLO}
        case "ping":
            return {"result": {}}
        case "tools/list" if file.exists():
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in file.read_text().split()]
            return {"result": {"tools": tools}}
        case "tools/list":
            return {"error": {"code": -32603, "message": "not this time"}}
        case "tools/call":
            params = request["params"]
            text = params.get("_meta", {}).get("traceparent", params["name"])
            return {"result": {"content": [{"type": "text", "text": text}]}}
        case _:
            return {"error": {"code": -32601, "message": "no such method"}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message, Path(sys.argv[1]))}), flush=True)
