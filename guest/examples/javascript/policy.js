// @ts-check
/// <reference path="./weir-policy.d.ts" />
// A policy that gets a key for each team from a service of your own, and uses it until it expires. `../token-service` is the
// same in Rust, `../python` in Python.

import { write } from "weir:policy/log@0.1.0";
import { send } from "weir:policy/http@0.1.0";

// The longest lifetime that the contract can say. The tools hand over -1 as this, and nobody would notice.
const LONGEST = 2 ** 32 - 1;

// QuickJS has no TextEncoder and no TextDecoder.
/** @param {string} text */
const encode = (text) => Uint8Array.from(unescape(encodeURIComponent(text)), (char) => char.charCodeAt(0));
// A body has up to 65,536 bytes, which are too many arguments for one call.
/** @param {Uint8Array} bytes */
function decode(bytes) {
  let chars = "";
  for (let at = 0; at < bytes.length; at += 8192) {
    chars += String.fromCharCode(...bytes.subarray(at, at + 8192));
  }
  return decodeURIComponent(escape(chars));
}

// A text that can be handed over; none of anything else.
/** @param {unknown} value */
const text = (value) => (typeof value === "string" && value !== "" && value.isWellFormed() ? value : undefined);

/** @returns {import("weir:policy/credentials@0.1.0").Decision} */
const stop = (/** @type {string} */ why) => ({ tag: "stop", val: why });

// The answer of the service; throws what went wrong.
/**
 * @param {string} url
 * @param {object} question
 */
function asked(url, question) {
  const body = encode(JSON.stringify(question));
  /** @type {[string, string][]} */
  const headers = [["content-type", "application/json"]];
  return send({ method: "post", url, headers, body, extensions: [] });
}

// The key in an answer; none if there is none.
/** @param {import("weir:policy/http@0.1.0").Response} answer */
function read(answer) {
  try {
    const { key, expires_in: seconds } = JSON.parse(decode(answer.body));
    const whole = Number.isInteger(seconds) && seconds >= 0 && seconds <= LONGEST;
    return text(key) && whole ? { key, seconds } : undefined;
  } catch {
    return undefined;
  }
}

/** @returns {import("weir:policy/credentials@0.1.0").Decision} */
function decided(/** @type {import("weir:policy/credentials@0.1.0").Question} */ about) {
  const { name, settings } = about.upstream;
  const service = text(JSON.parse(settings)?.service);
  if (!service) {
    return stop(`${name} has no key service; set \`service\` in the settings of its policy`);
  }
  const team = text(JSON.parse(about.principal?.claims ?? "{}")?.team);
  if (!team) {
    return stop(`your token has no team, which ${name} needs; ask whoever gives out tokens`);
  }
  let answer;
  try {
    answer = asked(service, { upstream: name, team });
  } catch (/** @type {any} */ why) {
    return stop(`the key service of ${name} cannot be asked: ${why.payload ?? why.message ?? why}`);
  }
  if (answer.status !== 200) {
    return stop(`the key service of ${name} answered with status ${answer.status}; try again later`);
  }
  const found = read(answer);
  if (!found) {
    return stop(`the key service of ${name} gave no key; ask whoever runs it`);
  }
  const { key, seconds } = found;
  write("info", `a key for the team ${team}, for ${seconds} s`);
  return {
    tag: "mint",
    val: { header: "authorization", scheme: "Bearer", text: key, ttlSeconds: seconds, extensions: [] },
  };
}

/** @type {typeof import("weir:policy/credentials@0.1.0")} */
export const credentials = {
  decide(about) {
    // Weir logs the words of an error that nobody catches at `debug` only; elsewhere it says "unreachable".
    try {
      return decided(about);
    } catch (/** @type {any} */ why) {
      return stop(`the policy of ${about.upstream.name} failed: ${why?.message ?? why}`);
    }
  },
};
