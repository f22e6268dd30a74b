"""A policy about credentials: the secret `token` goes into `Authorization`."""

from wit_world.exports import Credentials as Contract
from wit_world.exports.credentials import Attachment, Decision_Attach, Decision_Stop


class Credentials(Contract):
    def decide(self, about):
        name = about.upstream.name
        if about.refusal:
            return Decision_Stop(f"{name} answers {about.refusal.status} to its token; set another one")
        if "token" not in about.secrets:
            return Decision_Stop(f"{name} has no secret `token`; add it to the `secrets` of its policy")
        return Decision_Attach(
            Attachment(header="authorization", scheme="Bearer", secret="token", ttl_seconds=300, extensions=[])
        )
