// A policy that gets a key for each team from a service of your own, and uses it until it expires. `../token-service` is the
// same in Rust, `../python` in Python.

import { write } from "weir:policy/log@0.1.0";
import { send } from "weir:policy/http@0.1.0";

// QuickJS has no TextEncoder and no TextDecoder.
const encode = (text) => Uint8Array.from(unescape(encodeURIComponent(text)), (char) => char.charCodeAt(0));
const decode = (bytes) => decodeURIComponent(escape(String.fromCharCode(...bytes)));

const stop = (text) => ({ tag: "stop", val: text });

// The answer of the service; throws what went wrong.
function asked(url, question) {
  const body = encode(JSON.stringify(question));
  const headers = [["content-type", "application/json"]];
  return send({ method: "post", url, headers, body, extensions: [] });
}

// The key in an answer; none if there is none.
function read(answer) {
  try {
    const { key, expires_in } = JSON.parse(decode(answer.body));
    return typeof key === "string" && Number.isInteger(expires_in) ? { key, expires_in } : undefined;
  } catch {
    return undefined;
  }
}

export const credentials = {
  decide(about) {
    const { name, settings } = about.upstream;
    const { service } = JSON.parse(settings);
    if (!service) {
      return stop(`${name} has no key service; set \`service\` in the settings of its policy`);
    }
    const { team } = JSON.parse(about.principal?.claims ?? "{}");
    if (!team) {
      return stop(`your token has no team, which ${name} needs; ask whoever gives out tokens`);
    }
    let answer;
    try {
      answer = asked(service, { upstream: name, team });
    } catch (why) {
      return stop(`the key service of ${name} cannot be asked: ${why.payload ?? why.message ?? why}`);
    }
    if (answer.status !== 200) {
      return stop(`the key service of ${name} answered with status ${answer.status}; try again later`);
    }
    const found = read(answer);
    if (!found) {
      return stop(`the key service of ${name} gave no key; ask whoever runs it`);
    }
    write("info", `a key for the team ${team}, for ${found.expires_in} s`);
    const { key, expires_in } = found;
    return {
      tag: "mint",
      val: { header: "authorization", scheme: "Bearer", text: key, ttlSeconds: expires_in, extensions: [] },
    };
  },
};
