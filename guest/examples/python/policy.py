"""A policy that gets a key for each team from a service of your own, and uses it until it expires.

`../token-service` is the same in Rust, `../javascript` in JavaScript.
"""

import json

from componentize_py_types import Err
from wit_world.exports import Credentials as Contract
from wit_world.exports.credentials import Decision_Mint, Decision_Stop, MintedToken
from wit_world.imports import http, log


class Credentials(Contract):
    def decide(self, about):
        name = about.upstream.name
        service = json.loads(about.upstream.settings).get("service")
        if not service:
            return Decision_Stop(f"{name} has no key service; set `service` in the settings of its policy")
        team = json.loads(about.principal.claims).get("team") if about.principal else None
        if not team:
            return Decision_Stop(f"your token has no team, which {name} needs; ask whoever gives out tokens")
        try:
            answer = asked(service, {"upstream": name, "team": team})
        except Err as why:
            return Decision_Stop(f"the key service of {name} cannot be asked: {why.value}")
        if answer.status != 200:
            return Decision_Stop(f"the key service of {name} answered with status {answer.status}; try again later")
        found = read(answer.body)
        if found is None:
            return Decision_Stop(f"the key service of {name} gave no key; ask whoever runs it")
        key, seconds = found
        log.write(log.Level.INFO, f"a key for the team {team}, for {seconds} s")
        return Decision_Mint(
            MintedToken(header="authorization", scheme="Bearer", text=key, ttl_seconds=seconds, extensions=[])
        )


def asked(url, question):
    """The answer of the service. Raises `Err` with what went wrong."""
    headers = [("content-type", "application/json")]
    body = json.dumps(question).encode()
    return http.send(http.Request(http.Method.POST, url, headers, body, extensions=[]))


def read(body):
    """The key in an answer, and for how many seconds it is good; none if there is none."""
    try:
        answer = json.loads(body)
        key, seconds = answer["key"], answer["expires_in"]
    except (ValueError, KeyError, TypeError):
        return None
    return (key, seconds) if isinstance(key, str) and isinstance(seconds, int) else None
