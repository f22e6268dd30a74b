"""A server of the legacy era (2025-11-25) with one tool for each thing that a translation can get wrong.

    legacy.py stdio        on standard input and output
    legacy.py http         on a free port of the loopback address, printed as the first line
    legacy.py busy         the same, and the first time that a session listens it is told to come back later
"""

import json
import os
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INFO = {"name": "legacy-peer", "version": "1"}
CAPABILITIES = {
    "logging": {},
    "resources": {"subscribe": True},
    "tools": {"listChanged": True},
    "tasks": {},
}
TOOLS = ["echo", "seen", "ask", "report", "sign_in", "wait", "cancelled", "touch", "forget", "session", "alike"]
sessions = {}
cancelled = queue.Queue()


class Session:
    """What one client has said, and what waits for it."""

    def __init__(self, key, client):
        self.key = key
        self.client = client
        self.level = None
        self.watched = set()
        self.answers = {}
        self.asked = 0
        self.unasked = queue.Queue()
        self.stopped = {}
        self.turned_away = False

    def ask(self, send, method, params):
        self.asked += 1
        key = f"ask-{self.asked}"
        self.answers[key] = queue.Queue()
        send({"jsonrpc": "2.0", "id": key, "method": method, "params": params})
        return self.answers[key].get(timeout=20)

    def hear(self, message):
        """Takes in what is no request."""
        if message.get("method") == "notifications/cancelled":
            key = message["params"]["requestId"]
            cancelled.put(key)
            self.stopped.setdefault(key, threading.Event()).set()
        elif "method" not in message:
            self.answers[message["id"]].put(message)


def text(value):
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def notify(method, params=None):
    return {"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})}


def wait_for(path):
    """Waits until a test has put a file there, if a path is given."""
    while path and not os.path.exists(path):
        time.sleep(0.01)


class Failure(Exception):
    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.error = {"code": code, "message": message, **({"data": data} if data else {})}


def run_tool(session, request, send, headers):
    params = request["params"]
    name, arguments, meta = params["name"], params.get("arguments", {}), params.get("_meta", {})
    if name == "echo":
        return text(arguments)
    if name == "seen":
        return text({"params": sorted(params), "meta": sorted(meta), "headers": headers, "client": session.client})
    if name == "alike":
        return text(len([other for other in sessions.values() if other.client == session.client]))
    if name == "session":
        return text(session.key)
    if name == "ask":
        wait_for(arguments.get("until"))
        answers = []
        for field in arguments["fields"]:
            schema = {"type": "object", "properties": {field: {"type": "string"}}}
            question = {"message": field, "requestedSchema": schema, "_meta": {"x": 1}}
            answer = session.ask(send, "elicitation/create", question)
            answers.append(answer.get("result", {}).get("content", answer.get("error")))
        return text(answers)
    if name == "report":
        for level in ["debug", "info", "error"]:
            send(notify("notifications/message", {"level": level, "data": level}))
        for step in [1, 2]:
            send(notify("notifications/progress", {"progressToken": meta.get("progressToken"), "progress": step}))
        return text(session.level or "none")
    if name == "sign_in":
        raise Failure(-32042, "Sign in", {"elicitations": [{"message": "Here", "url": "https://sign.in.test/x"}]})
    if name == "wait":
        send(notify("notifications/progress", {"progressToken": meta.get("progressToken"), "progress": 1}))
        session.stopped.setdefault(request["id"], threading.Event()).wait(20)
        return None
    if name == "cancelled":
        cancelled.get(timeout=20)
        return text("yes")
    if name == "touch":
        session.unasked.put(notify("notifications/tools/list_changed"))
        for uri in sorted(session.watched):
            session.unasked.put(notify("notifications/resources/updated", {"uri": uri}))
        return text("touched")
    if name == "forget":
        sessions.clear()
        return text("forgotten")
    raise Failure(-32602, "unknown tool")


def result_of(session, request, send, headers):
    method, params = request["method"], request.get("params", {})
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    if method == "tools/call":
        return run_tool(session, request, send, headers)
    if method == "logging/setLevel":
        session.level = params["level"]
        return {}
    if method == "resources/subscribe" and params["uri"].startswith("refused:"):
        wait_for(params["uri"].removeprefix("refused:"))
        raise Failure(-32602, "not this one")
    if method == "resources/subscribe":
        session.watched.add(params["uri"])
        return {}
    if method == "resources/unsubscribe":
        session.watched.discard(params["uri"])
        return {}
    if method == "resources/list":
        return {"resources": []}
    if method == "resources/read":
        raise Failure(-32002, "no such resource")
    raise Failure(-32601, "no such method")


def serve(session, request, send, headers=()):
    """Answers one request; a request that was cancelled has no answer."""
    try:
        result = result_of(session, request, send, list(headers))
        if result is not None:
            send({"jsonrpc": "2.0", "id": request["id"], "result": result})
    except Failure as failure:
        send({"jsonrpc": "2.0", "id": request["id"], "error": failure.error})


def begin(request):
    session = Session(str(len(sessions) + 1) + "-" + str(id(request)), request["params"])
    sessions[session.key] = session
    result = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": INFO, "instructions": "Ask."}
    return session, {"jsonrpc": "2.0", "id": request["id"], "result": result}


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if message.get("method") == "initialize":
            wait_for(message["params"]["capabilities"].get("experimental", {}).get("until", {}).get("path"))
            session, answer = begin(message)
            self.whole(200, answer, session.key)
            return
        session = self.session()
        if session is None:
            return
        if "id" not in message or "method" not in message:
            session.hear(message)
            self.whole(202)
            return
        self.events()
        names = sorted(name.lower() for name in self.headers if name.lower().startswith("mcp-"))
        serve(session, message, self.event, names)
        self.close_connection = True

    def do_GET(self):
        session = self.session()
        if session is None:
            return
        if sys.argv[1] == "busy" and not session.turned_away:
            session.turned_away = True
            self.whole(503)
            return
        self.events()
        while True:
            self.event(session.unasked.get())

    def do_DELETE(self):
        session = self.session()
        if session is not None:
            del sessions[session.key]
            self.whole(200)

    def session(self):
        key = self.headers.get("mcp-session-id")
        if key is None:
            self.whole(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no session"}})
        elif key not in sessions:
            self.whole(404, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "gone"}})
        return sessions.get(key)

    def whole(self, status, message=None, key=None):
        body = json.dumps(message).encode() if message else b""
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if body:
            self.send_header("content-type", "application/json")
        if key:
            self.send_header("mcp-session-id", key)
        self.end_headers()
        self.wfile.write(body)

    def events(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.flush()

    def event(self, message):
        self.wfile.write(b"data: " + json.dumps(message).encode() + b"\n\n")
        self.wfile.flush()


def over_http():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # Ends with its parent, which holds the other end.
    sys.stdin.read()


def over_stdio():
    lock = threading.Lock()
    session = None

    def send(message):
        with lock:
            print(json.dumps(message), flush=True)

    def forward():
        while True:
            send(session.unasked.get())

    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "initialize":
            session, answer = begin(message)
            send(answer)
            threading.Thread(target=forward, daemon=True).start()
        elif "id" in message and "method" in message and session is None:
            send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "initialize first"}})
        elif "id" in message and "method" in message:
            threading.Thread(target=serve, args=(session, message, send), daemon=True).start()
        elif session is not None:
            session.hear(message)


over_stdio() if sys.argv[1] == "stdio" else over_http()
