"""A visit with the official Python SDK, either era.

    python clients/python_client.py TARGET [--era legacy|auto|modern] [--transport http|sse|stdio]
                                    [--tool NAME] [--arguments JSON]

TARGET is a URL; for stdio it is a command, as a JSON array. Prints one line of JSON that tells what was seen.
"""

import argparse
import asyncio
import json
import os

from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client

MODERN = "2026-07-28"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--transport", choices=["http", "sse", "stdio"], default="http")
    parser.add_argument("--era", choices=["legacy", "auto", "modern"], default="legacy")
    parser.add_argument("--tool")
    parser.add_argument("--arguments", type=json.loads, default={})
    options = parser.parse_args()
    mode = MODERN if options.era == "modern" else options.era
    server = sse_client(options.target) if options.transport == "sse" else options.target
    if options.transport == "stdio":
        command, *arguments = json.loads(options.target)
        server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    async with Client(server, mode=mode) as client:
        print(json.dumps(await visit(client, options.tool, options.arguments)))


async def visit(client: Client, tool: str | None, arguments: dict) -> dict:
    can = plain(client.server_capabilities)
    # A pinned modern client does not ask what the server can do: try everything.
    knows = bool(can)
    tools = await pages(client.list_tools, "tools") if not knows or "tools" in can else []
    resources = await pages(client.list_resources, "resources") if not knows or "resources" in can else []
    prompts = await pages(client.list_prompts, "prompts") if not knows or "prompts" in can else []
    seen = {
        "era": "modern" if client.protocol_version >= MODERN else "legacy",
        "server": client.server_info.name if client.server_info else None,
        "capabilities": sorted(can),
        "tools": [tool.name for tool in tools],
        "resources": [str(resource.uri) for resource in resources],
        "prompts": [prompt.name for prompt in prompts],
    }
    if tool is not None:
        seen["call"] = plain(await client.call_tool(tool, arguments))
    if resources:
        seen["resource"] = plain(await client.read_resource(resources[0].uri))
    for prompt in prompts:
        if not any(argument.required for argument in prompt.arguments or []):
            seen["prompt"] = plain(await client.get_prompt(prompt.name))
            break
    return seen


async def pages(fetch, key: str) -> list:
    found, cursor = [], None
    while True:
        page = await fetch(cursor=cursor)
        found += getattr(page, key)
        cursor = page.next_cursor
        if cursor is None:
            return found


def plain(model) -> dict:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True) if model is not None else {}


if __name__ == "__main__":
    asyncio.run(main())
