"""Calls tools with the Python SDK, all at once on one connection, as clients/at_once.mjs does it.

    python clients/at_once.py URL CALLS [--era legacy|auto|modern]
"""

import argparse
import json

import anyio
from tour_sdk2 import connect


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("calls", type=json.loads)
    parser.add_argument("--era", choices=["legacy", "auto", "modern"], default="legacy")
    options = parser.parse_args()
    answers = [{} for _ in options.calls]
    async with connect(options.target, "http", options.era) as connection:

        async def call(at: int, name: str, arguments: dict) -> None:
            try:
                answers[at]["text"] = await connection.call(name, arguments)
            except Exception as error:
                answers[at]["error"] = str(error)

        async with anyio.create_task_group() as all_at_once:
            for at, one in enumerate(options.calls):
                all_at_once.start_soon(call, at, one["name"], one["arguments"])
    print(json.dumps(answers))


if __name__ == "__main__":
    anyio.run(main)
