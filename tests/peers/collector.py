"""Becomes a collector of OpenTelemetry that prints each log, span and metric that it takes; its port is the argument."""

import importlib.util
import os
import sys
from pathlib import Path

agent = Path(importlib.util.find_spec("rotel").origin).with_name("rotel-agent")
address = f"127.0.0.1:{sys.argv[1]}"
settings = [
    ("--exporter", "blackhole"),
    ("--otlp-http-endpoint", address),
    ("--otlp-grpc-endpoint", "127.0.0.1:0"),
    *(("--debug-log", signal) for signal in ("logs", "traces", "metrics")),
    ("--debug-log-verbosity", "detailed"),
    ("--pid-file", sys.argv[2]),
]
os.execv(agent, [agent, "start", *(word for setting in settings for word in setting)])
