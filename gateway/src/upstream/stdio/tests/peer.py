# A server that does on its pipes exactly what a test tells it to.
#   say   (or tools/call) writes `lines` as they are, with ID and TOKEN replaced by those of the request
#   heard answers with the lines it has read so far, as the characters that came
import json, os, signal, subprocess, sys, time

heard = []
out = sys.stdout.buffer


def write(line):
    out.write(line.encode() + b"\n")
    out.flush()


def answer(request, result):
    write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}))


if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

for line in iter(sys.stdin.buffer.readline, b""):
    heard.append(line.decode())
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    token = params.get("_meta", {}).get("progressToken")
    if method in ("say", "tools/call"):
        for text in params["lines"]:
            write(text.replace("ID", json.dumps(message["id"])).replace("TOKEN", json.dumps(token)))
    elif method == "heard":
        answer(message, heard)
    elif method == "echo":
        answer(message, params["text"])
    elif method == "burst":
        for n in range(params["count"]):
            write(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress",
                              "params": {"progressToken": token, "progress": n}}))
        answer(message, "done")
    elif method == "big":
        answer(message, "x" * params["bytes"])
    elif method == "endless":
        for _ in range(params["mib"]):
            out.write(b"x" * 1048576)
        out.write(b"\n" * params.get("line", False))
        out.flush()
    elif method == "tail":
        write(json.dumps({"result": "x" * params["bytes"], "jsonrpc": "2.0", "id": message["id"]}))
    elif method == "raw":
        out.write(bytes.fromhex(params["hex"]))
        out.flush()
        answer(message, "done")
    elif method == "complain":
        sys.stderr.write("complaint\n" * params["count"])
        sys.stderr.write("y" * params["count"])
        sys.stderr.flush()
        answer(message, "done")
    elif method == "exit":
        answer(message, "last words") if params.get("answer") else None
        os._exit(params["code"])
    elif method == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif method == "close":
        os.close(params["fd"])
        time.sleep(600)
    elif method == "fork":
        child = subprocess.Popen(["sleep", "600"])
        answer(message, [os.getpid(), child.pid])

while "deaf" in sys.argv:
    time.sleep(600)
