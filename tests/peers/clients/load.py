"""Calls `echo` again and again with the Python SDK until SIGTERM, as clients/load.mjs does it.

    python clients/load.py URL TOOL PAUSE [--era legacy|modern]
"""

import argparse
import json
import os
import signal

import anyio
from tour_sdk2 import connect


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("tool")
    parser.add_argument("pause", type=float)
    parser.add_argument("--era", choices=["legacy", "modern"], default="legacy")
    options = parser.parse_args()
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, end)
    right, failures, number = 0, [], 0
    async with connect(options.target, "http", options.era) as connection:
        print("connected", flush=True)
        while not over:
            message = f"python-{os.getpid()}-{number}"
            number += 1
            try:
                text = await connection.call(options.tool, {"message": message})
                if text == message:
                    right += 1
                else:
                    failures.append(f"{message} was answered {text}")
            except Exception as error:
                failures.append(f"{message}: {error!r}")
            await anyio.sleep(options.pause / 1000)
    print(json.dumps({"right": right, "failures": failures}), flush=True)


if __name__ == "__main__":
    anyio.run(main)
