"""A policy about connections: Streamable HTTP, first in the modern era, then in the legacy era."""

from wit_world.exports import Connection as Contract
from wit_world.exports.connection import Candidate, Step_Attempt, Step_Authorize, Step_Stop
from wit_world.imports.types import Era, Outcome_Unauthorized, Outcome_Unsupported, Transport


class Connection(Contract):
    def next(self, to, history):
        if not history:
            return Step_Attempt(Candidate(Transport.HTTP, to.required_era or Era.MODERN, []))
        last = history[-1]
        if last.era == Era.MODERN and isinstance(last.outcome, Outcome_Unsupported) and to.required_era is None:
            return Step_Attempt(Candidate(Transport.HTTP, Era.LEGACY, []))
        if isinstance(last.outcome, Outcome_Unauthorized) and not last.credential:
            return Step_Authorize(Candidate(last.transport, last.era, []))
        return Step_Stop(f"{to.name} cannot be reached over Streamable HTTP; look at its address")
