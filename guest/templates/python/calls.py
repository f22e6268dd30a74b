"""A policy about calls: nothing is deleted."""

from wit_world.exports import Calls as Contract
from wit_world.exports.calls import (
    AnswerDecision,
    AnswerVerdict_Pass,
    Decision,
    Denial,
    Detail,
    EntryVerdict_Show,
    Interest,
    Verdict_Deny,
)


class Calls(Contract):
    def wants(self, settings):
        """What it wants to see. What it does not want to see never crosses to it."""
        return Interest(
            methods=["tools/call"],
            names=["delete_*"],
            request=Detail.FACTS,
            answer=Detail.NOTHING,
            event=Detail.NOTHING,
            entries=[],
            extensions=[],
        )

    def before(self, about, params):
        """What becomes of a request. The decision is kept for a minute for calls with the same facts."""
        text = f"{about.name} is not allowed here: nothing is deleted; archive it instead"
        denial = Denial(code=None, text=text, extensions=[])
        return Decision(
            verdict=Verdict_Deny(denial), headers=[], labels=[], memory="", ttl_seconds=60, extensions=[]
        )

    def after(self, about, memory, what):
        """What becomes of what comes back."""
        return AnswerDecision(verdict=AnswerVerdict_Pass(), labels=[], memory=memory, extensions=[])

    def entries(self, of, entries):
        """What becomes of entries of lists."""
        return [EntryVerdict_Show() for _ in entries]
