"""A second real authorization server, of another make: Authlib on Flask.

It keeps to RFC 6749, 7636, 8414, 8628, 7591, 7009 and OpenID Connect, and knows nothing of resource indicators. Its
issuer has a path. Users sign in by themselves. The first line it prints is {"issuer": ...}.
"""

import json
import logging
import secrets
import sys
import threading
import time

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, TokenMixin, grants, list_to_scope, scope_to_list
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint, DeviceCodeGrant, DeviceCredentialDict
from authlib.oidc.core import UserInfo
from authlib.oidc.core.grants import OpenIDCode
from flask import Flask, jsonify, request
from joserfc.jwk import ECKey
from werkzeug.serving import make_server

DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
TENANT = "/tenant-1"


class User:
    def get_user_id(self):
        return "bob"


BOB = User()
KEY = ECKey.generate_key("P-256", {"kid": "one", "use": "sig", "alg": "ES256"})


class Client(ClientMixin):
    def __init__(self, metadata):
        self.client_id = metadata["client_id"]
        self.client_secret = metadata.get("client_secret", "")
        self.metadata = metadata

    @property
    def client_info(self):
        return {"client_id": self.client_id, "client_secret": self.client_secret, "client_secret_expires_at": 0}

    @property
    def client_metadata(self):
        return {key: value for key, value in self.metadata.items() if not key.startswith("client_secret")}

    def get_client_id(self):
        return self.client_id

    def get_default_redirect_uri(self):
        return self.metadata["redirect_uris"][0]

    def get_allowed_scope(self, scope):
        return list_to_scope([word for word in scope_to_list(scope or "") if word in ("read", "write", "openid")])

    def check_redirect_uri(self, redirect_uri):
        return redirect_uri in self.metadata["redirect_uris"]

    def check_client_secret(self, client_secret):
        return secrets.compare_digest(self.client_secret, client_secret)

    def check_endpoint_auth_method(self, method, endpoint):
        return method == self.metadata.get("token_endpoint_auth_method", "client_secret_basic")

    def check_response_type(self, response_type):
        return response_type in self.metadata.get("response_types", ["code"])

    def check_grant_type(self, grant_type):
        return grant_type in self.metadata.get("grant_types", [])


class Code:
    def __init__(self, payload):
        self.code, self.client_id = secrets.token_urlsafe(24), None
        self.redirect_uri, self.scope = payload.redirect_uri, payload.scope
        self.code_challenge = payload.data.get("code_challenge")
        self.code_challenge_method = payload.data.get("code_challenge_method")
        self.nonce = payload.data.get("nonce")

    def get_redirect_uri(self):
        return self.redirect_uri

    def get_scope(self):
        return self.scope

    def get_nonce(self):
        return self.nonce

    def get_auth_time(self):
        return None

    get_acr = get_amr = get_auth_time


class Token(TokenMixin):
    def __init__(self, token, client):
        self.token, self.client, self.issued, self.revoked = token, client, time.time(), False

    def check_client(self, client):
        return client.client_id == self.client.client_id

    def get_scope(self):
        return self.token.get("scope", "")

    def get_expires_in(self):
        return self.token.get("expires_in", 0)

    def is_expired(self):
        return time.time() > self.issued + self.get_expires_in()

    def is_revoked(self):
        return self.revoked

    def get_user(self):
        return BOB

    def get_client(self):
        return self.client


clients, codes, devices, tokens = {}, {}, {}, []


def find(kind, text):
    return next((token for token in tokens if token.token.get(kind) == text and not token.revoked), None)


class CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]

    def save_authorization_code(self, code, request):
        kept = Code(request.payload)
        kept.code, kept.client_id = code, request.client.client_id
        codes[code] = kept

    def query_authorization_code(self, code, client):
        kept = codes.get(code)
        return kept if kept and kept.client_id == client.client_id else None

    def delete_authorization_code(self, authorization_code):
        del codes[authorization_code.code]

    def authenticate_user(self, authorization_code):
        return BOB


class Identity(OpenIDCode):
    def exists_nonce(self, nonce, request):
        return any(kept.nonce == nonce for kept in codes.values())

    def resolve_client_private_key(self, client):
        return KEY

    def get_client_algorithm(self, client):
        return "ES256"

    def get_client_claims(self, client):
        return {"iss": issuer}

    def generate_user_info(self, user, scope):
        return UserInfo(sub=user.get_user_id(), name="Bob")


class RefreshGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token):
        return find("refresh_token", refresh_token)

    def authenticate_user(self, refresh_token):
        return BOB

    def revoke_old_credential(self, refresh_token):
        refresh_token.revoked = True


class DeviceGrant(DeviceCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]

    def query_device_credential(self, device_code):
        kept = next((kept for kept in devices.values() if kept["device_code"] == device_code), None)
        return DeviceCredentialDict(kept) if kept else None

    def query_user_grant(self, user_code):
        return (BOB, True) if devices[user_code].get("approved") else None

    def should_slow_down(self, credential):
        return False


class Devices(DeviceAuthorizationEndpoint):
    INTERVAL = 1
    CLIENT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]

    def get_verification_uri(self):
        return issuer + "/device"

    def save_device_credential(self, client_id, scope, data):
        devices[data["user_code"]] = {
            **data,
            "client_id": client_id,
            "scope": scope,
            "expires_at": time.time() + data["expires_in"],
        }


class Revocation(RevocationEndpoint):
    CLIENT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]

    def query_token(self, token_string, token_type_hint):
        kinds = [token_type_hint] if token_type_hint else ["access_token", "refresh_token"]
        return next((token for kind in kinds if (token := find(kind, token_string))), None)

    def revoke_token(self, token, request):
        token.revoked = True


class Registration(ClientRegistrationEndpoint):
    def authenticate_token(self, request):
        return True

    def get_server_metadata(self):
        return metadata()

    def save_client(self, client_info, client_metadata, request):
        client = Client({**client_metadata, **client_info})
        clients[client.client_id] = client
        return client


app = Flask(__name__)
server = AuthorizationServer(
    app, query_client=clients.get, save_token=lambda token, request: tokens.append(Token(token, request.client))
)
server.register_grant(CodeGrant, [CodeChallenge(required=True), Identity(require_nonce=True)])
server.register_grant(RefreshGrant)
server.register_grant(grants.ClientCredentialsGrant)
server.register_grant(DeviceGrant)
for endpoint in (Devices, Revocation, Registration):
    server.register_endpoint(endpoint)
app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True
server.load_config(app.config)


def metadata():
    return {
        "issuer": issuer,
        "authorization_endpoint": issuer + "/authorize",
        "token_endpoint": issuer + "/token",
        "registration_endpoint": issuer + "/register",
        "revocation_endpoint": issuer + "/revoke",
        "device_authorization_endpoint": issuer + "/device_authorization",
        "code_challenge_methods_supported": ["S256"],
        "jwks_uri": issuer + "/keys",
        "scopes_supported": ["read", "write", "openid"],
        "response_types_supported": ["code"],
        "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials", DEVICE],
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
    }


@app.get("/.well-known/oauth-authorization-server" + TENANT)
def describe():
    return jsonify(metadata())


@app.get(TENANT + "/keys")
def keys():
    return jsonify({"keys": [KEY.as_dict(private=False)]})


@app.get(TENANT + "/authorize")
def authorize():
    grant = server.get_consent_grant(end_user=BOB)
    return server.create_authorization_response(grant_user=BOB, grant=grant)


@app.post(TENANT + "/token")
def token():
    return server.create_token_response()


@app.post(TENANT + "/device_authorization")
def device_authorization():
    return server.create_endpoint_response(Devices.ENDPOINT_NAME)


@app.post(TENANT + "/device")
def device():
    devices[request.form["user_code"]]["approved"] = True
    return "thank you"


@app.post(TENANT + "/revoke")
def revoke():
    return server.create_endpoint_response(Revocation.ENDPOINT_NAME)


@app.post(TENANT + "/register")
def register():
    return server.create_endpoint_response(Registration.ENDPOINT_NAME)


def main():
    global issuer
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    listener = make_server("127.0.0.1", 0, app, threaded=True)
    issuer = f"http://127.0.0.1:{listener.server_port}{TENANT}"
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    print(json.dumps({"issuer": issuer}), flush=True)
    sys.stdin.read()  # Until whoever started it has gone.


if __name__ == "__main__":
    main()
