"""A tour with the Python SDK, as clients/tour.mjs does it: see there for STATIONS and for what is printed.

    python clients/tour.py STATIONS [--era legacy|auto|modern] [--transport http|sse]

Which version of the SDK it is depends on the Python that runs it.
"""

import argparse
import importlib.metadata
import json
import time

import anyio

if importlib.metadata.version("mcp").startswith("1."):
    from tour_sdk1 import connect
else:
    from tour_sdk2 import connect

PATIENCE = 20


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stations", type=json.loads)
    parser.add_argument("--era", choices=["legacy", "auto", "modern"], default="legacy")
    parser.add_argument("--transport", choices=["http", "sse"], default="http")
    options = parser.parse_args()
    seen = {}

    async def visit_one(station: dict) -> None:
        seen[station["name"]] = await visit(station, options)

    async with anyio.create_task_group() as tours:
        for station in options.stations:
            tours.start_soon(visit_one, station)
    print(json.dumps(seen))


async def visit(station: dict, options: argparse.Namespace) -> dict:
    result = {"failures": []}
    try:
        async with connect(station["target"], options.transport, options.era) as connection:
            result["era"] = connection.era
            for name, step in {"call": call, "pages": pages, "notification": notification, "cancel": cancel}.items():
                if name == "pages" and station["pages"] < 2:
                    continue
                try:
                    with anyio.fail_after(PATIENCE):
                        await step(connection, station)
                    result[name] = True
                except Exception as error:
                    result[name] = False
                    result["failures"].append(f"{name}: {said(error)}")
    except Exception as error:
        result["failures"].append(f"{'leave' if 'era' in result else 'connect'}: {said(error)}")
    return result


def said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


async def call(connection, station: dict) -> None:
    text = await connection.call(station["prefix"] + "echo", {"message": "hello"})
    assert text.endswith("hello"), text


async def pages(connection, station: dict) -> None:
    names, cursor, count = [], None, 0
    while count == 0 or cursor is not None:
        page, cursor = await connection.list(cursor)
        names += page
        count += 1
    assert count >= station["pages"] and any(name.endswith("given_up") for name in names), f"{count} pages"


async def notification(connection, station: dict) -> None:
    heard = []

    async def progress(done: float, _total, _message) -> None:
        heard.append(done)

    slow = station["slow"]
    await connection.call(station["prefix"] + slow["tool"], slow["short"], progress)
    assert len(heard) >= 2, f"{len(heard)} notifications of progress"
    assert all(a < b for a, b in zip(heard, heard[1:])), heard


async def cancel(connection, station: dict) -> None:
    prefix, slow = station["prefix"], station["slow"]
    before = await given_up(connection, prefix) if station["counts"] else 0
    began = anyio.Event()

    async def progress(*_) -> None:
        began.set()

    await connection.cancelled(prefix + slow["tool"], slow["long"], progress, began)
    if not station["counts"]:
        return await call(connection, station)
    end = time.monotonic() + 5
    while await given_up(connection, prefix) <= before:
        assert time.monotonic() < end, "the server was not told"
        await anyio.sleep(0.1)


async def given_up(connection, prefix: str) -> int:
    return int(await connection.call(prefix + "given_up", {}))


if __name__ == "__main__":
    anyio.run(main)
