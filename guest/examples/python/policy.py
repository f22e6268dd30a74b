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
        # Weir logs the words of an exception that nobody catches at `debug` only; elsewhere it says "unreachable".
        try:
            return decided(about)
        except Exception as why:
            return Decision_Stop(f"the policy of {about.upstream.name} failed: {type(why).__name__}: {why}")


def decided(about):
    name = about.upstream.name
    service = text_of(about.upstream.settings, "service")
    if not service:
        return Decision_Stop(f"{name} has no key service; set `service` in the settings of its policy")
    team = text_of(about.principal.claims, "team") if about.principal else None
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


def text_of(document, key):
    """A member of an object that is a text; none if it is missing or something else."""
    members = json.loads(document)
    return text(members.get(key)) if isinstance(members, dict) else None


def text(value):
    """A text that can be handed over; none of anything else, such as half of a surrogate pair."""
    try:
        return value if isinstance(value, str) and value.encode() else None
    except UnicodeEncodeError:
        return None


def read(body):
    """The key in an answer, and for how many seconds it is good; none if there is none."""
    try:
        answer = json.loads(body)
        key, seconds = text(answer["key"]), answer["expires_in"]
    except (ValueError, KeyError, TypeError):
        return None
    # `True` is an `int` as well.
    whole = type(seconds) is int and 0 <= seconds < 2**32
    return (key, seconds) if key and whole else None
